"""Generate text from prompts with a model: `python -m scripts.generate --help`."""

import argparse
import json
import secrets
import time
from dataclasses import replace
from typing import Any

from scripts import console
from scripts.console import say
from scripts.options import (
    add_engine_options,
    add_model_options,
    check_engine_options,
    flags_named,
    load_model,
    make_engine,
)
from scripts.pod import Pod, add_device_options, check_device_options, pod
from scripts.prompts import check_text, read_prompts

PROG = "generate"
DESCRIPTION = """\
Generate text with a model. Prompts come from --prompt, --prompts-file or stdin (all of it is one
prompt, less its last newline) and run together.

stdout: with one prompt its text, as it comes. With several, each whole text in the order of the
prompts under a line "==> INDEX: PROMPT <==", an empty line between them. With --json one object a
line in the same order: index, prompt, text, token_ids, prompt_token_ids, finish_reason ("stop" or
"length"). Everything else goes to stderr.

exit code: 0, or 2 bad input, 1 out of memory, 130 Ctrl-C, 141 stdout was closed."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(prog=PROG, description=DESCRIPTION)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt; repeatable")
    source.add_argument(
        "--prompts-file",
        metavar="FILE",
        help='one prompt a line, empty lines left out ("-": stdin); in a .jsonl file each line is '
        'a string or {"prompt": string}',
    )
    parser.add_argument(
        "--chat", action="store_true", help="put each prompt into the model's chat template"
    )
    parser.add_argument("--system", metavar="TEXT", help="with --chat: the system message")
    parser.add_argument("--json", action="store_true", help="one JSON object a prompt")
    _add_sampling_options(parser)
    add_model_options(parser)
    add_engine_options(parser)
    add_device_options(parser)
    args = parser.parse_args(argv)
    if args.system is not None and not args.chat:
        parser.error("--system needs --chat")
    for name in ("top_k", "top_p", "min_p", "seed"):
        if getattr(args, name) is not None and not args.temperature:
            parser.error(f"--{name.replace('_', '-')} needs --temperature above 0")
    return args


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling, in this order: temperature, top-k, top-p, min-p")
    for flag, kind, default, name, text in (
        ("--max-new-tokens", int, 128, "N", "tokens to generate at most"),
        ("--temperature", float, 0.0, "T", "0 always takes the likeliest token"),
    ):
        text += " (default: %(default)s)"
        group.add_argument(flag, type=kind, default=default, metavar=name, help=text)
    # Without a default, so that one given without a temperature can be refused.
    for flag, kind, default, name, text in (
        ("--top-k", int, 0, "K", "keep the K likeliest tokens; 0 keeps all"),
        ("--top-p", float, 1.0, "P", "keep the fewest tokens that add up to P"),
        ("--min-p", float, 0.0, "P", "keep tokens at least P times as likely as the likeliest"),
    ):
        text += f" (default: {default})"
        group.add_argument(flag, type=kind, metavar=name, help=text)
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="the same seed gives a prompt the same text whatever runs beside it; default: a new "
        "one each time, told on stderr",
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end a text before this string; repeatable",
    )


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    for text, flag in [(args.system, "--system"), *((stop, "--stop") for stop in args.stop)]:
        check_text(text or "", flag)
    with flags_named():
        params = _sampling_params(args)
        check_engine_options(args)
        check_device_options(args)
    if args.process_id:  # the leader has stdin
        return _generate(args, None, params)
    return _generate(args, read_prompts(args.prompt, args.prompts_file), params)


def _generate(args: argparse.Namespace, prompts: list[str] | None, params: Any) -> int:
    with pod(args) as here:
        seed = params.seed
        if params.temperature > 0 and seed is None:
            seed = secrets.randbits(32)
            say(f"{PROG}: seed {seed}")
        prompts, seed = here.share([prompts, seed])
        _run(args, here, prompts, replace(params, seed=seed))
    return 0


def _run(args: argparse.Namespace, here: Pod, prompts: list[str], params: Any) -> None:
    start = time.perf_counter()
    mesh = here.mesh(args)
    loaded = load_model(args, mesh)
    say(f"{PROG}: loaded the model in {time.perf_counter() - start:.1f} s")
    prompt_ids = [_encode(loaded.tokenizer, prompt, args) for prompt in prompts]
    longest = _max_model_len(args, loaded.config.max_position_embeddings, prompt_ids)
    with flags_named():
        engine = make_engine(args, loaded, longest, len(prompts), mesh, here.least)
        _print_all(engine, prompts, prompt_ids, params, args.json)
    _report(engine.stats)


def _sampling_params(args: argparse.Namespace) -> Any:
    from jaxattn.engine import SamplingParams

    given = {name: getattr(args, name) for name in ("top_k", "top_p", "min_p", "seed")}
    return SamplingParams(
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        stop=tuple(args.stop),
        **{name: value for name, value in given.items() if value is not None},
    )


def _encode(tokenizer: Any, prompt: str, args: argparse.Namespace) -> list[int]:
    if not args.chat:
        return tokenizer.encode(prompt)
    if tokenizer.chat_template is None:
        raise ValueError("--chat: this model has no chat template")
    messages = [{"role": "user", "content": prompt}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return tokenizer.encode(text, add_special=False)  # the template has its own


def _max_model_len(args: argparse.Namespace, context: int, prompt_ids: list[list[int]]) -> int:
    """--max-model-len, or a length that fits the requests, rounded up so that programs are reused.

    ValueError if it is beyond the model's context, or if a prompt leaves no room for a token.
    """
    if context < 2:
        raise ValueError(
            f"the model's context is {context}: it must hold a prompt token and a generated one"
        )
    longest = max(map(len, prompt_ids))
    if args.max_model_len is not None:
        if args.max_model_len > context:
            raise ValueError(
                f"--max-model-len must be at most the model's context of {context}, "
                f"got {args.max_model_len}"
            )
        limit = args.max_model_len
    else:
        wanted = longest + args.max_new_tokens
        limit = min(context, 1 << (wanted - 1).bit_length())
    for index, ids in enumerate(prompt_ids):
        if not 1 <= len(ids) < limit:
            whose = "the model's context of" if args.max_model_len is None else "--max-model-len"
            raise ValueError(
                f"prompt {index} has {len(ids)} tokens: it must have from 1 to {limit - 1}, so "
                f"that with one generated token it fits {whose} {limit}"
            )
    if limit < longest + args.max_new_tokens:
        say(f"{PROG}: the longest prompt leaves room for {limit - longest} new tokens of {limit}")
    return limit


def _print_all(engine, prompts, prompt_ids, params, as_json: bool) -> None:
    """Generate and print, in the order of the prompts."""
    texts: list[list[str]] = [[] for _ in prompts]
    token_ids: list[list[int]] = [[] for _ in prompts]
    reasons: list[str | None] = [None] * len(prompts)
    streaming = len(prompts) == 1 and not as_json
    printed = 0
    for output in engine.stream(prompt_ids, params, _on_compile):
        texts[output.index].append(output.text)
        token_ids[output.index].append(output.token_id)
        reasons[output.index] = output.finish_reason
        if streaming:
            print(output.text, end="", flush=True)
            continue
        while printed < len(prompts) and reasons[printed] is not None:
            completion = {
                "index": printed,
                "prompt": prompts[printed],
                "text": "".join(texts[printed]),
                "token_ids": token_ids[printed],
                "prompt_token_ids": prompt_ids[printed],
                "finish_reason": reasons[printed],
            }
            if as_json:
                print(json.dumps(completion, ensure_ascii=False), flush=True)
            else:
                _print_titled(printed, prompts[printed], completion["text"])
            printed += 1
    if streaming and not "".join(texts[0]).endswith("\n"):
        print(flush=True)
    if cut := reasons.count("length"):
        which = "the text" if len(prompts) == 1 else f"{cut} of {len(prompts)} texts"
        limit = f"--max-new-tokens {params.max_new_tokens} or at the model length"
        say(f"{PROG}: {which} ended at {limit}")


def _print_titled(index: int, prompt: str, text: str) -> None:
    title = " ".join(prompt.split())
    title = title if len(title) <= 60 else title[:59] + "…"
    title_line = f"==> {index}: {title} <==\n"
    print("\n" * (index > 0) + title_line + text.removesuffix("\n"), flush=True)


def _on_compile(number: int, count: int, bucket: tuple[int, int]) -> None:
    tokens, seqs = bucket
    say(
        f"{PROG}: compiling step {number + 1} of {count} ({tokens} tokens, {seqs} sequences), "
        "or reading it from the cache"
    )


def _report(stats) -> None:
    say(
        f"{PROG}: prefill {stats.prefill_tokens} tokens, {stats.prefill_rate:.1f} tokens/s; "
        f"decode {stats.decode_tokens} tokens, {stats.decode_rate:.1f} tokens/s; "
        f"compiling took {stats.compile_seconds:.1f} s"
    )


if __name__ == "__main__":
    console.run(PROG, main)
