"""The sizes of a plan, and what follows from them without a compiler."""

import dataclasses
import math
from typing import Any

ITEM_BYTES = {"bfloat16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A model and an engine on `data` replicas of `shards` devices each.

    config: models.Config as it is stored, its kv heads copied where that takes (models.sharding).
    seqs, batched_tokens: the most in a step of one replica.
    """

    config: Any
    data: int
    shards: int
    seqs: int
    max_model_len: int
    batched_tokens: int
    page_size: int
    dtype: str

    @property
    def table_width(self) -> int:
        return -(-self.max_model_len // self.page_size)

    @property
    def local_heads(self) -> tuple[int, int]:
        """Query and kv heads on one device."""
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        parts = self.shards if kv_heads % self.shards == 0 else 1
        return heads // parts, kv_heads // parts

    @property
    def token_bytes(self) -> int:
        """Cache of one token on one device, all layers."""
        per_layer = 2 * self.local_heads[1] * self.config.head_dim * ITEM_BYTES[self.dtype]
        return per_layer * self.config.num_layers

    @property
    def page_bytes(self) -> int:
        return self.token_bytes * self.page_size

    @property
    def wanted_pages(self) -> int:
        """Pages of a replica when every sequence is at its longest: no more are ever used."""
        return self.seqs * self.table_width

    def weight_bytes(self, params) -> int:
        """Weights on one device; params: ShapeDtypeStructs with shardings."""
        local = (x.sharding.shard_shape(x.shape) for x in params)
        return sum(math.prod(shape) for shape in local) * ITEM_BYTES[self.dtype]
