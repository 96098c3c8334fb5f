"""The one table of shapes: real models, the grids of other projects' tests, and the edges."""

from typing import NamedTuple


class Heads(NamedTuple):
    """Query heads H, key/value heads K, head dims D and Dv."""

    h: int
    k: int
    d: int
    dv: int | None = None

    @property
    def value_dim(self) -> int:
        return self.dv or self.d

    def one_group(self) -> "Heads":
        """The same group and head dims with one kv head (two where the group is small)."""
        group = self.h // self.k
        kv = 1 if group > 4 else min(self.k, 2)
        return Heads(group * kv, kv, self.d, self.dv)


# What the models' published configs say.
MODELS = {
    "smollm2-135m": Heads(9, 3, 64),
    "llama-2-7b": Heads(32, 32, 128),
    "llama-3-8b": Heads(32, 8, 128),
    "mistral-7b": Heads(32, 8, 128),
    "qwen2-0.5b": Heads(14, 2, 64),
    "qwen2-7b": Heads(28, 4, 128),
    "qwen3-0.6b": Heads(16, 8, 128),
    "gemma-2-9b": Heads(16, 8, 256),
    "gemma-3-1b": Heads(4, 1, 256),
    "phi-3-mini": Heads(32, 32, 96),
    "stablelm-3b": Heads(32, 32, 80),
    "falcon-7b": Heads(71, 1, 64),
    "gpt-oss-20b": Heads(64, 8, 64),
    "llama-4-scout": Heads(40, 8, 128),
    "deepseek-v3": Heads(128, 128, 192, 128),
    "vit-b-16": Heads(12, 12, 64),
    "vit-l-14": Heads(16, 16, 64),
    "vit-h-14": Heads(16, 16, 80),
    "siglip-so400m": Heads(16, 16, 72),
}

# Patches and class token: 224/16, 256/16, 336/14, 378/14, 518/14.
VIT_LENGTHS = (197, 257, 577, 729, 1369)

GROUPS = (1, 4, 5, 7, 8, 16, 71)
HEAD_DIMS = (8, 16, 32, 40, 64, 72, 80, 96, 112, 128, 192, 256)
UNEQUAL_DIMS = ((192, 128), (64, 256), (128, 8), (72, 40))
PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# vLLM test_triton_unified_attention.py: (query length, key length) of each sequence.
VLLM_HEADS = ((4, 4), (8, 2), (5, 1))
VLLM_HEAD_DIMS = (128, 256)
VLLM_SEQS = (
    ((1, 1328), (5, 18), (129, 463)),
    ((1, 523), (1, 37), (1, 2011)),
)
VLLM_WINDOWS = (None, 64, 128, 256)
VLLM_SOFTCAPS = (None, 50.0)
VLLM_MANY = ((1, 1),) * 533

# FlashAttention hopper/test_flash_attn.py: (query length, key length).
FLASH_HEADS = ((6, 6), (6, 2), (6, 1))
FLASH_HEAD_DIMS = (64, 96, 128, 192, 256)
# fmt: off
FLASH_VARLEN = (
    (1, 1), (64, 128), (128, 192), (256, 256), (239, 1), (799, 3), (113, 203), (113, 128),
    (128, 217), (113, 211), (108, 256), (256, 512), (384, 256), (640, 128), (512, 256),
    (1024, 1024), (1023, 1024), (1024, 1023), (1, 3), (2, 1), (511, 1), (3, 513),
)
FLASH_LONG = ((4096, 4096), (4224, 4224))
FLASH_KVCACHE = (
    (1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20000),
    (128, 128), (256, 512), (2048, 3577),
)
# fmt: on

# FlashInfer's mixed batches, as (query length, key length).
FLASHINFER_MIXED = (
    ((1, 2048),) * 8,
    ((129, 4099),) * 2,
    ((1, 600),) * 26 + ((3, 5000),) * 12,
    ((1, 1024),) * 10 + ((17, 8192),) * 2,
    ((2, 766),) * 9 + ((512, 1024),),
    ((235, 235), (1, 3353)),
)

# Empty queries, empty keys, both; one token; more queries than keys; page and tile boundaries and
# one to each side of them; a prompt continued in the middle of a page.
EDGES = (
    ((0, 5), (3, 0), (0, 0), (7, 3), (1, 1), (16, 16), (17, 33), (2, 64), (1, 63), (1, 65)),
    ((0, 0), (0, 0), (0, 0)),
    ((3, 0), (1, 0)),
    ((1, 1),),
    ((40, 8), (9, 8), (8, 8), (8, 9)),
    ((15, 15), (16, 16), (17, 17), (1, 16), (1, 17), (5, 21), (32, 96)),
)
