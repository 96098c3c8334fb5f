"""Time greedy decoding against transformers on the same GGUF: `... --help`."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts import console
from scripts.console import say
from scripts.options import use_compilation_cache

PROG = "compare_transformers"
DESCRIPTION = """\
Time greedy decoding in float32 on this CPU, ours and that of transformers, from one GGUF file.

Both sides first have to give the same ids. Then each round times, one after the other: transformers
one prompt at a time, ours one prompt at a time, ours all prompts together. A figure is decode
tokens per second, prefill and compiling left out; the table shows the median round and the ratios.

transformers, torch and gguf are no dependencies of this project: name an interpreter that has them.

exit code: 0, or 2 bad input, 1 if the ids differ."""
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def binary_search(items, target):\n",
    "The three most important inventions of the nineteenth century were",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    "Water boils at a lower temperature on a mountain because",
    "# Shopping list\n\n- apples\n- bread\n-",
)
CASES = ("transformers, one by one", "jaxattn, one by one", "jaxattn, together")


class Peer:
    """transformers in its own process."""

    def __init__(self, python: str, model: Path):
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("peer_transformers.py")), str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about = self._read()

    def decode(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        request = {"prompts": prompts, "new_tokens": new_tokens}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(
                f"the transformers process ended with code {self._process.wait()}: does its "
                f"interpreter (--transformers-python) have torch, transformers and gguf?"
            )
        return json.loads(line)


class Ours:
    """Our engine, compiled for one prompt and for all of them."""

    def __init__(self, model: Path, max_model_len: int, num_seqs: int):
        import models
        from jaxattn.engine import Engine, EngineConfig

        use_compilation_cache()
        loaded = models.load(model, dtype="float32")
        self.encode = loaded.tokenizer.encode
        config = EngineConfig(
            max_model_len=max_model_len,
            num_pages=num_seqs * -(-max_model_len // 16),
            max_num_seqs=num_seqs,
        )
        self._engine = Engine(
            loaded.step,
            loaded.params,
            loaded.cache_spec,
            config,
            vocab_size=loaded.config.vocab_size,
        )

    def decode(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """As Peer.decode, but all prompts together."""
        from jaxattn.engine import SamplingParams

        stats = self._engine.stats
        before = stats.decode_tokens, stats.decode_seconds
        params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
        completions = self._engine.generate(prompts, params)
        return {
            "ids": [completion.token_ids for completion in completions],
            "tokens": stats.decode_tokens - before[0],
            "seconds": stats.decode_seconds - before[1],
        }


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(prog=PROG, description=DESCRIPTION)
    parser.add_argument(
        "--transformers-python",
        metavar="PATH",
        default=sys.executable,
        help="an interpreter with torch, transformers and gguf (default: this one)",
    )
    parser.add_argument(
        "--model", metavar="FILE.gguf", help="default: SmolLM2-135M-Instruct, downloaded once"
    )
    parser.add_argument("--new-tokens", type=int, default=32, metavar="N",
                        help="tokens of each prompt (default: %(default)s)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, metavar="N",
                        help="timed rounds (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args(argv)
    if args.new_tokens < 2:
        parser.error(f"--new-tokens must be at least 2, got {args.new_tokens}")
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    from models.catalog import resolve

    model = resolve(args.model)
    say(f"{PROG}: loading both")
    peer = Peer(args.transformers_python, model)
    ours = Ours(model, 32 + args.new_tokens, len(PROMPTS))
    prompts = [ours.encode(prompt) for prompt in PROMPTS]
    runs = {
        CASES[0]: lambda: [peer.decode(prompts, args.new_tokens)],
        CASES[1]: lambda: [ours.decode([prompt], args.new_tokens) for prompt in prompts],
        CASES[2]: lambda: [ours.decode(prompts, args.new_tokens)],
    }
    say(f"{PROG}: comparing ids, and compiling")
    ids = {case: [i for part in run() for i in part["ids"]] for case, run in runs.items()}
    if not ids[CASES[0]] == ids[CASES[1]] == ids[CASES[2]]:
        say(f"{PROG}: error: the ids differ, so the times would mean nothing")
        return console.FAILED
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    for number in range(args.rounds):
        for case, run in runs.items():
            parts = run()
            rate = sum(p["tokens"] for p in parts) / sum(p["seconds"] for p in parts)
            rates[case].append(rate)
        say(f"{PROG}: round {number + 1} of {args.rounds}: "
            + ", ".join(f"{case} {rates[case][-1]:.1f}/s" for case in CASES))  # fmt: skip
    peer.close()
    _print(args, peer.about, rates)
    return 0


def _print(args: argparse.Namespace, about: dict[str, Any], rates: dict[str, list[float]]) -> None:
    import jax

    peer, alone, together = (statistics.median(rates[case]) for case in CASES)
    result = {
        "decode_tokens_per_second": rates,
        "alone_over_transformers": alone / peer,
        "together_over_transformers": together / peer,
        "together_over_alone": together / alone,
        "prompts": len(PROMPTS),
        "new_tokens": args.new_tokens,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "versions": f"{about['versions']}, jax {jax.__version__}",
        "torch_threads": about["threads"],
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"decode tokens/s, float32, {result['cpus']} CPUs, {result['versions']}")
    for case, rate in zip(CASES, (peer, alone, together), strict=True):
        print(f"  {case:28}{rate:8.1f}{rate / peer:8.2f} x")


if __name__ == "__main__":
    console.run(PROG, main)
