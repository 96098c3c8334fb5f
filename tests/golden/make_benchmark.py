"""Make benchmark.json and benchmark_page.txt: invented results, and the page they give.

    PYTHONPATH=. python tests/golden/make_benchmark.py

The numbers are made up so that every kind of row and target occurs: they say nothing of speed.
"""

from pathlib import Path

from scripts.bench import page, results
from scripts.bench.targets import Target

HERE = Path(__file__).parent
ROOFLINE = {
    "read_bytes_per_second": 4e12,
    "copy_bytes_per_second": 4.2e12,
    "flops_per_second": 7.5e14,
}


def row(implementation, milliseconds=None, variant="", error=None):
    rounds = [] if milliseconds is None else [milliseconds / 1e3 * part for part in (0.9, 1, 1.3)]
    return {
        "implementation": implementation,
        "variant": variant,
        "error": error,
        "off": None if error else 0.004,
        "seconds": None if error else milliseconds / 1e3,
        "calls": None if error else 15,
        "rounds": rounds,
    }


def case(name, text, limit, bound, rows, *targets):
    return {
        "name": name,
        "text": text,
        "flops": int(bound * 7.5e14) if limit == "compute" else 10**9,
        "bytes": int(bound * 4e12) if limit == "memory" else 10**6,
        "limit": limit,
        "roofline_seconds": bound,
        "targets": [
            {"kind": kind, "least": least, "against": list(against)}
            for kind, least, against in (
                (target.kind, target.least, target.against) for target in targets
            )
        ],
        "results": rows,
    }


def document():
    """A run of two suites: targets reached, missed and not measured; a wrong and a broken peer."""
    return {
        "schema": results.SCHEMA,
        "date": "2026-01-02T03:04:05+00:00",
        "device": "Invented GPU",
        "platform": "gpu",
        "versions": {"python": "3.12.0", "jax": "0.12.0"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "small": False,
        "compiler": None,
        "roofline": ROOFLINE,
        "suites": {"prefill": ["prefill"], "decode": ["decode", "decode P1", "decode W"]},
        "cases": [
            case(
                "prefill",
                "prefill:B1,S8192,H32/8,D128,P16",
                "compute",
                7e-4,
                [
                    row("jaxattn", 1.0),
                    row("fa3", 0.9),
                    row("vllm", error="wrong: off by 0.5 of the reference's norm"),
                ],
                Target("peer", 0.8, ("fa3",)),
                Target("peer", 7, ("vllm",)),
            ),
            case(
                "decode",
                "decode:B16,S8192,H32/8,D128,P16",
                "memory",
                1e-4,
                [
                    row("jaxattn", 0.125),
                    row("fa3 paged", 0.4, "num_splits 1"),
                    row("fa3 paged", 0.13, "num_splits 16"),
                ],
                Target("peer", 1.1, ("fa3 paged",)),
                Target("read", 0.7),
            ),
            case(
                "decode P1",
                "decode:B16,S8192,H32/8,D128,P1",
                "memory",
                1e-4,
                [row("jaxattn", 0.2)],
                Target("rate", 0.7, ("decode",)),
                Target("time", 0.5, ("decode",)),
            ),
            case(
                "decode W",
                "decode:B16,S8192,H32/8,D128,P16,W1024",
                "memory",
                2e-5,
                [row("jaxattn", error="RuntimeError: out of memory | twice")],
                Target("time", 0.87, ("decode",)),
            ),
        ],
    }


def main():
    made = results.judged(document())
    results.write(made, HERE / "benchmark.json")
    (HERE / "benchmark_page.txt").write_text(page.page({HERE / "benchmark.json": made}))


if __name__ == "__main__":
    main()
