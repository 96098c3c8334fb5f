"""Plan a model on a slice of TPU chips, without one: `python -m scripts.plan --help`."""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

from scripts import console
from scripts.console import say
from scripts.options import flags_named
from scripts.planning import document, page, table, topology
from scripts.planning.sizes import ITEM_BYTES, Sizes

PROG = "plan"
DESCRIPTION = """\
Compile a model's prefill, mixed and decode steps for a slice of TPU chips by the TPU compiler, on a
machine without a TPU, and tell: whether it fits, how many pages of cache are left and how many
tokens they hold, what each step moves over HBM and ICI, its roofline time and tokens/s, what
compiling took, and which collectives XLA put in. No weights are read. Needs libtpu (Linux, x86-64).

stdout: tables, or with --json one object; --report makes docs/plan.md of files of such objects.

exit code: 0 also when the model does not fit, 2 bad input, 130 Ctrl-C, 141 stdout was closed."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(prog=PROG, description=DESCRIPTION)
    parser.add_argument(
        "--model",
        metavar="DIR|HF-ID|config.json",
        help="a folder with config.json, the file itself, or a Hugging Face id (only its "
        "config.json is downloaded)",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help='chips: "v5e:2x4", "v5p:2x2x1"; a wrong name lists the valid ones',
    )
    parser.add_argument("--data", type=int, metavar="N", help="replicas (default: what is left)")
    parser.add_argument(
        "--model-parallel",
        type=int,
        metavar="N",
        help="devices of a replica, which share its weights and heads (default: what is left)",
    )
    for flag, default, text in (
        ("--max-num-seqs", 64, "requests in a step, of all replicas together"),
        ("--max-model-len", 8192, "tokens of a request, prompt and generated"),
        ("--max-num-batched-tokens", 2048, "tokens in a step of one replica"),
        ("--page-size", 16, "tokens in a cache page, a power of two up to 256"),
    ):
        text += " (default: %(default)s)"
        parser.add_argument(flag, type=int, default=default, metavar="N", help=text)
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens that a decoding request holds, for times and bytes (default: half of "
        "--max-model-len, or what fits)",
    )
    parser.add_argument("--dtype", choices=tuple(ITEM_BYTES), default="bfloat16")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--report", nargs="+", type=Path, metavar="FILE", help="print the page of these objects"
    )
    args = parser.parse_args(argv)
    if args.report is None:
        for name in ("model", "topology"):
            if getattr(args, name) is None:
                parser.error(f"--{name} is needed")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.report is not None:
        print(page.page({path: _read(path) for path in args.report}), end="")
        return 0
    slice_ = topology.parse(args.topology)
    data, shards = mesh_shape(slice_.devices, args.data, args.model_parallel)
    topology.without_hardware()
    sizes = _sizes(args, data, shards)
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError("--topology needs the package libtpu, which is for Linux on x86-64")
    say(f"{PROG}: compiling three steps of {args.model} for {slice_.name}")
    plan = document.make(args.model, slice_, sizes, args.context, _said)
    print(json.dumps(plan, indent=1) if args.json else table.plain(plan), end="")
    if args.json:
        print()
    return 0


def mesh_shape(devices: int, data: int | None, shards: int | None) -> tuple[int, int]:
    """(replicas, devices of each) of a slice; all devices are used."""
    for flag, n in (("--data", data), ("--model-parallel", shards)):
        if n is not None and (n < 1 or devices % n):
            raise ValueError(f"{flag} {n}: it must divide the {devices} devices of the topology")
    if data is None:
        return (1, devices) if shards is None else (devices // shards, shards)
    shards = devices // data if shards is None else shards
    if data * shards != devices:
        raise ValueError(
            f"--data {data} and --model-parallel {shards} are {data * shards} devices: they must "
            f"be the {devices} of the topology"
        )
    return data, shards


def _sizes(args: argparse.Namespace, data: int, shards: int) -> Sizes:
    from jaxattn.engine import EngineConfig
    from models import catalog, config_hf, sharding
    from models.safetensors_files import read_json

    for flag in ("--max-num-seqs", "--context"):
        n = getattr(args, flag[2:].replace("-", "_"))
        if n is not None and n < 1:
            raise ValueError(f"{flag} must be at least 1, got {n}")
    seqs = -(-args.max_num_seqs // data)
    with flags_named():
        EngineConfig(
            max_model_len=args.max_model_len,
            num_pages=1,
            page_size=args.page_size,
            max_num_seqs=seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
        )
    if args.context is not None and args.context > args.max_model_len:
        raise ValueError(
            f"--context {args.context} must be at most --max-model-len {args.max_model_len}"
        )
    try:
        config = config_hf.from_hf(read_json(catalog.config_file(args.model)))
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {args.model!r}: {error}") from None
    if args.max_model_len > config.max_position_embeddings:
        raise ValueError(
            f"--max-model-len must be at most the model's context of "
            f"{config.max_position_embeddings}, got {args.max_model_len}"
        )
    return Sizes(
        sharding.for_shards(config, shards),
        data,
        shards,
        seqs,
        args.max_model_len,
        args.max_num_batched_tokens,
        args.page_size,
        args.dtype,
    )


def _said(name: str, seconds: float) -> None:
    say(f"{PROG}: compiled {name} in {seconds:.0f} s")


def _read(path: Path) -> dict[str, Any]:
    try:
        return document.check(json.loads(path.read_text()))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"--report {path}: {error}") from None


if __name__ == "__main__":
    console.run(PROG, main)
