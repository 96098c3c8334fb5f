"""How much of a decode step a GPU spends between kernels, from the profiler's own trace.

Builds a Llama of the given sizes with zero weights (what they are changes no time), makes decode
steps over a paged cache, each from what the one before sampled, and adds up what the trace says of
the GPU's streams. One JSON line on stdout.

    python -m tools.step_gaps                    # Llama-3.1-8B's sizes, batch 1
    python -m tools.step_gaps --batch 64 --context 2048
"""

import datetime
import functools
import json
import tempfile
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxattn import Batch, PagedKV
from models import llama
from models.config import Config
from scripts import console

PROG = "step_gaps"
STEPS = 20  # traced, after as many that warm up


def arguments():
    parser = console.Parser(prog=PROG, description=__doc__)
    sizes = {"layers": 32, "hidden": 4096, "mlp": 14336, "heads": 32, "kv-heads": 8}
    sizes |= {"head-dim": 128, "vocabulary": 128256, "batch": 1, "context": 2048, "page-size": 16}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    args = parser.parse_args()
    for name in sizes:
        if (number := getattr(args, name.replace("-", "_"))) < 1:
            parser.error(f"--{name}={number}: must be at least 1")
    if jax.default_backend() != "gpu":
        parser.error(f"JAX runs on {jax.default_backend()!r}: the trace of a GPU is needed")
    return args


def decode(step, params, batch, caches):
    """The next step's batch and the caches: greedy tokens, one position further."""
    logits, caches = step(params, batch, caches)
    rows = jnp.arange(batch.tokens.shape[0])
    positions = batch.positions + 1
    page_size = caches[0].page_size
    pages = batch.block_tables[rows, positions // page_size]
    return Batch(
        tokens=jnp.argmax(logits, axis=-1).astype(jnp.int32),
        positions=positions,
        slots=pages * page_size + positions % page_size,
        block_tables=batch.block_tables,
        seq_lens=batch.seq_lens + 1,
        cu_q_lens=batch.cu_q_lens,
    ), caches


def operands(args, config):
    """Zero weights, and a batch whose sequences have ``context`` tokens in the cache."""
    n, page_size = args.batch, args.page_size
    width = -(-(args.context + 2 * STEPS + 1) // page_size)
    graphdef, state = llama.abstract(config, jnp.bfloat16)
    params = [jnp.zeros(x.shape, x.dtype) for x in jax.tree.leaves(state)]
    tables = jnp.arange(n * width, dtype=jnp.int32).reshape(n, width)
    position = jnp.full((n,), args.context, jnp.int32)
    batch = Batch(
        tokens=jnp.zeros((n,), jnp.int32),
        positions=position,
        slots=tables[:, args.context // page_size] * page_size + args.context % page_size,
        block_tables=tables,
        seq_lens=position + 1,
        cu_q_lens=jnp.arange(n + 1, dtype=jnp.int32),
    )
    caches = tuple(
        PagedKV.create(n * width, page_size, config.num_kv_heads, config.head_dim)
        for _ in range(config.num_layers)
    )
    return llama.make_step(graphdef, state), params, batch, caches


def traced(run, batch, caches, folder):
    for steps in (STEPS, STEPS):
        with jax.profiler.trace(folder):  # the last one counts
            for _ in range(steps):
                batch, caches = run(batch, caches)
            jax.block_until_ready(batch)
    return max(Path(folder).rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)


def streams(path):
    """(start, end, name) of what ran on the GPU's streams, in nanoseconds, in order."""
    profile = jax.profiler.ProfileData.from_file(str(path))
    planes = [plane for plane in profile.planes if plane.name.startswith("/device:GPU")]
    lines = [line for plane in planes for line in plane.lines if "Stream" in line.name]
    events = (event for line in lines for event in line.events)
    return sorted((e.start_ns, e.start_ns + e.duration_ns, e.name) for e in events)


def summary(events):
    """Times of one step in microseconds, gaps as a share, and what takes longest."""
    busy, until = 0.0, events[0][0]
    for start, end, _ in events:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    span, longest = until - events[0][0], Counter()
    for start, end, name in events:
        longest[name] += end - start
    return {
        "step_us": round(span / 1e3 / STEPS, 1),
        "busy_us": round(busy / 1e3 / STEPS, 1),
        "between_kernels": round(1 - busy / span, 4),
        "kernels": round(len(events) / STEPS, 1),
        "longest_us": {k[:48]: round(v / 1e3 / STEPS, 1) for k, v in longest.most_common(8)},
    }


def main() -> int:
    args = arguments()
    config = Config(
        family="llama",
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=args.mlp,
        num_layers=args.layers,
        num_heads=args.heads,
        num_kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        max_position_embeddings=args.context + 4 * STEPS,
    )
    step, params, batch, caches = operands(args, config)
    jitted = jax.jit(functools.partial(decode, step), donate_argnums=2)
    with tempfile.TemporaryDirectory() as folder:
        path = traced(functools.partial(jitted, params), batch, caches, folder)
        found = summary(streams(path))
    about = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    about["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    print(json.dumps(about | vars(args) | found))
    return 0


if __name__ == "__main__":
    console.run(PROG, main)
