"""The frozen description of a decoder of the Llama kind, whatever file it was read from."""

from dataclasses import dataclass, field

from models.rope import Rope
from models.wording import shown

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Config:
    """Sizes in elements; `windows[i]` is how many keys layer i sees, itself included (None: all).

    family: the architecture's name, as in Hugging Face's `model_type`. Nothing in the model depends
    on
    it: what differs between families is in the other fields.
    qkv_bias, out_bias, mlp_bias: which projections add a bias. qk_norm: RMSNorm over each query and
    key head before RoPE. eos_token_ids: any of them ends a text.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    windows: tuple[int | None, ...] = ()
    tie_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self):
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"):
            _positive(name, getattr(self, name))
        for name in ("num_kv_heads", "head_dim", "max_position_embeddings"):
            _positive(name, getattr(self, name))
        if not self.rms_norm_eps > 0:
            raise ValueError(f"rms_norm_eps is {self.rms_norm_eps}; it must be above 0")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 8 or self.head_dim > 256:
            raise ValueError(f"head_dim {self.head_dim} must be a multiple of 8 from 8 to 256")
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.num_layers)
        if len(self.windows) != self.num_layers:
            raise ValueError(
                f"windows has {len(self.windows)} entries for {self.num_layers} layers"
            )
        for window in self.windows:
            if window is not None:
                _positive("sliding_window", window)
        for end in self.eos_token_ids:
            if not 0 <= end < self.vocab_size:
                raise ValueError(
                    f"eos_token_id is {end}; it must be below vocab_size {self.vocab_size}"
                )

    @property
    def group_size(self):
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads


def _positive(name, value):
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {shown(value)}; it must be a whole number of at least 1")
