"""The three steps of an engine, compiled for a topology: shapes in, a compiled program out."""

import dataclasses
import time
from typing import Any

from scripts.planning import collectives, hlo, traffic
from scripts.planning.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class Step:
    """The static shape of a step on one replica: token rows and sequence rows, and its name."""

    name: str
    tokens: int
    seqs: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler says about a step, on one device.

    flops: of all but the attention kernel. temporary, code: bytes of HBM beside the arguments.
    """

    step: Step
    seconds: float
    flops: float
    temporary: int
    code: int
    collectives: list[collectives.Collective]
    traffic: traffic.Traffic


def steps(sizes: Sizes) -> list[Step]:
    """A prompt alone; prompts beside everybody's decodes; decodes only. As the engine's buckets."""
    from jaxattn.engine.buckets import power_of_two

    seqs = power_of_two(sizes.seqs)
    tokens = max(power_of_two(sizes.batched_tokens), 2 * seqs)
    return [Step("prefill", tokens, 1), Step("mixed", tokens, seqs), Step("decode", seqs, seqs)]


class Compiler:
    """Compiles steps of one model on one mesh. Nothing is allocated: all arguments are shapes."""

    def __init__(self, sizes: Sizes, mesh: Any, dtype: str):
        import jax.numpy as jnp

        from models import llama, sharding

        self.sizes, self.mesh, self.dtype = sizes, mesh, jnp.dtype(dtype)
        graphdef, state = llama.abstract(sizes.config, self.dtype)
        self.params = sharding.abstract_params(sizes.config, mesh, self.dtype)
        self.model = llama.make_step(graphdef, state)

    def caches(self, num_pages: int) -> tuple:
        """The cache of every layer, with `num_pages` in each replica."""
        import jax
        from jax.sharding import NamedSharding

        from jaxattn import PagedKV
        from models import sharding

        config = self.sizes.config
        spec = sharding.cache_spec(config, self.mesh.shape["model"])
        shape = (num_pages * self.mesh.shape["data"], config.num_kv_heads)
        shape += (self.sizes.page_size, config.head_dim)
        array = jax.ShapeDtypeStruct(shape, self.dtype, sharding=NamedSharding(self.mesh, spec))
        return (PagedKV(array, array),) * config.num_layers

    def lower(self, step: Step, num_pages: int) -> Any:
        """The step as JAX hands it to the compiler. ValueError for what attention refuses."""
        import jax
        import jax.numpy as jnp
        from jax.sharding import NamedSharding

        from jaxattn.engine.buckets import Bucket
        from jaxattn.engine.inputs import packed_size
        from jaxattn.engine.runner import program
        from models import sharding

        bucket, width = Bucket(step.tokens, step.seqs), self.sizes.table_width
        run = sharding.over_replicas(program(self.model, bucket, width), self.mesh)
        place = NamedSharding(self.mesh, sharding.REPLICAS)
        size = packed_size(bucket, width) * self.mesh.shape["data"]
        packed = jax.ShapeDtypeStruct((size,), jnp.int32, sharding=place)
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            traced = jax.jit(run, donate_argnums=2).trace(
                self.params, packed, self.caches(num_pages)
            )
            return traced.lower(lowering_platforms=("tpu",))

    def compile(self, step: Step, lowered: Any) -> Compiled:
        """Compile a step. RuntimeError with "RESOURCE_EXHAUSTED" if it does not fit a device."""
        start = time.perf_counter()
        compiled = lowered.compile()
        seconds = time.perf_counter() - start
        memory, text = compiled.memory_analysis(), hlo.parse(compiled.as_text())
        return Compiled(
            step,
            seconds,
            compiled.cost_analysis()["flops"],
            memory.temp_size_in_bytes,
            memory.generated_code_size_in_bytes,
            collectives.collectives(text, self.mesh.size),
            traffic.traffic(text),
        )
