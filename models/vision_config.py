"""Frozen descriptions of vision towers and image-text pairs, whatever file they come from."""

from dataclasses import dataclass

from models.wording import shown

ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu")


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes, in elements, of a stack of pre-norm blocks.

    activation: one of ACTIVATIONS. gated: the feed-forward is silu(a) * b, as DINOv2-giant's.
    layer_scale: each branch is multiplied by a vector before it is added. causal: a token sees
    those before it, as in CLIP's text tower.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm_eps: float
    activation: str = "gelu"
    qkv_bias: bool = True
    gated: bool = False
    layer_scale: bool = False
    causal: bool = False

    def __post_init__(self):
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of num_attention_heads "
                f"{self.num_heads}"
            )
        if self.head_dim % 8 or self.head_dim > 256:
            raise ValueError(f"head_dim {self.head_dim} must be a multiple of 8 from 8 to 256")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation is {shown(self.activation)}; it must be one of "
                f"{', '.join(ACTIVATIONS)}"
            )

    @property
    def head_dim(self):
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class VisionConfig:
    """A vision tower. image_size and patch_size are in pixels, both square.

    Other image sizes get positions by bicubic interpolation of the grid of image_size; `antialias`
    says whether it smooths when it shrinks.

    class_token, num_registers: the tokens before the patches. patch_bias: of the patch embedding.
    pre_norm: a norm of the embeddings, before the first layer. post_norm: whether the last hidden
    state is normed (in CLIP only its class token is).
    pooling: "class", "tanh" (a dense layer on the class token) or "attention" (a learnt query).
    classifier: what its rows see: None, "class", or "class+mean" (of the patches beside it).
    """

    family: str
    encoder: EncoderConfig
    image_size: int
    patch_size: int
    class_token: bool = True
    num_registers: int = 0
    patch_bias: bool = True
    pre_norm: bool = False
    post_norm: bool = True
    antialias: bool = False
    pooling: str | None = "class"
    pooler_size: int = 0
    classifier: str | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self):
        if self.image_size < self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} must be at least patch_size {self.patch_size}"
            )

    @property
    def grid(self):
        """Patches along a side of an image of image_size."""
        return self.image_size // self.patch_size

    @property
    def num_prefix(self):
        """Tokens before the patches."""
        return int(self.class_token) + self.num_registers


@dataclass(frozen=True)
class TextConfig:
    """A text tower. pool_id: its first token's hidden state is the text's; None: the token of the
    highest id (CLIP files from before 2023), "last": the last token's, padding or not (SigLIP).

    head_bias: of the projection of that state, which has `head_size` rows.
    """

    encoder: EncoderConfig
    vocab_size: int
    max_length: int
    pool_id: int | str | None
    head_size: int
    head_bias: bool = False


@dataclass(frozen=True)
class PairConfig:
    """An image tower and a text tower with one space for both: CLIP or SigLIP.

    sigmoid: scores of labels are independent (SigLIP) and not a softmax over them (CLIP).
    """

    family: str
    vision: VisionConfig
    text: TextConfig
    sigmoid: bool

    def __post_init__(self):
        if self.family == "siglip" and self.text.head_size != self.vision.encoder.hidden_size:
            raise ValueError(
                f"projection_size {self.text.head_size} of the text tower must be the vision "
                f"tower's hidden_size {self.vision.encoder.hidden_size}"
            )
