"""The named suites: which cases there are, and what each is to reach on an H200."""

import dataclasses
import random

from scripts.bench.cases import Case, parse
from scripts.bench.targets import Target

NAMES = ("vit", "prefill", "decode", "mixed", "neighbours")
HEADS = "H32/8,D128"
CUDNN = ("cudnn", "torch-sdpa cudnn")
EVEN = 0.7  # of the rate of a neighbour
AS_FAST_AS_Q1 = 1 / 1.15
WINDOWED = 1 / 1.15
PADDED = 0.5  # of the rate of the neighbour that padding would make of it


def suite(name: str) -> list[Case]:
    """The cases of a suite; "all" is all of them, each once.

    Raises:
      ValueError: no suite has that name.
    """
    if name == "all":
        cases = {case.name: case for each in NAMES for case in suite(each)}
        return list(cases.values())
    if name not in NAMES:
        raise ValueError(f"suite {name!r}: must be one of {', '.join(NAMES)}, all")
    return globals()[f"_{name}"]()


def _case(label: str, text: str, *targets: Target, peers: bool = True) -> Case:
    case = parse(text)
    return dataclasses.replace(case, name=label, targets=targets, peers=peers)


def _faster(times: float, *than: str) -> Target:
    return Target("peer", times, than)


def _vit() -> list[Case]:
    towers = [
        _case("ViT-L/14-336", "full:B64,S577,H16,D64", _faster(1.05, *CUDNN)),
        _case("ViT-B/16-224", "full:B128,S197,H12,D64", _faster(1.05, *CUDNN)),
    ]
    # SigLIP-so400m has D72. FLOPs count true columns only, so padding to 128 would cost the rate.
    widths = [
        _case(
            f"SigLIP D{d}",
            f"full:B32,S729,H16,D{d}",
            *([Target("rate", 0.9, ("SigLIP D128",))] if d < 128 else []),
            peers=d == 72,
        )
        for d in (72, 80, 96, 128)
    ]
    return towers + widths


def _prefill() -> list[Case]:
    return [
        _case(
            "prefill 8k paged",
            f"prefill:B1,S8192,{HEADS},P16",
            _faster(7, "vllm"),
            _faster(0.8, "fa3"),
        ),
        _case("prefill 8k", f"prefill:B1,S8192,{HEADS}"),
        _case("full 4k", "full:B4,S4096,H16,D128"),
    ]


def _decode() -> list[Case]:
    numbers = random.Random(0)
    ragged = "+".join(f"1/{numbers.randint(20, 4000)}" for _ in range(256))
    return [
        _case("decode B1 ctx 32768", f"decode:B1,S32768,{HEADS},P16", _faster(1.4, "fa3 paged")),
        _case("decode B16 ctx 8192", f"decode:B16,S8192,{HEADS},P16", _faster(1.1, "fa3 paged")),
        _case("decode B128 ctx 2048", f"decode:B128,S2048,{HEADS},P16", _faster(1.1, "fa3 paged")),
        _case(
            "decode 100k among 63 of 500",
            f"mixed:L1/100000+63*1/500,{HEADS},P16",
            Target("read", 0.85),
        ),
        _case("decode 256 of 20 to 4000", f"mixed:L{ragged},{HEADS},P16", Target("read", 0.85)),
    ]


def _mixed() -> list[Case]:
    numbers = random.Random(0)
    decodes = [f"1/{numbers.randint(200, 4000)}" for _ in range(64)]
    lengths = "+".join([*decodes, "512/512", "1024/1024", "300/2300"])
    text = f"mixed:L{lengths},{HEADS},P16"
    return [_case("64 decodes, 3 prefills", text, _faster(5, "vllm"))]


def _neighbours() -> list[Case]:
    return [*_page_sizes(), *_widths(), *_groups(), *_queries(), *_windows(), *_unaligned()]


def _row(cases: list[tuple[str, str]]) -> list[Case]:
    """Cases (name, text) of which each is to be about as good as those beside it."""
    names = [name for name, _ in cases]
    beside = [
        [
            Target("rate", EVEN, (other,))
            for other in names[max(0, i - 1) : i] + names[i + 1 : i + 2]
        ]
        for i in range(len(names))
    ]
    return [
        _case(name, text, *targets, peers=False)
        for (name, text), targets in zip(cases, beside, strict=True)
    ]


def _page_sizes() -> list[Case]:
    sizes = (1, 16, 32, 64, 256)
    decode = [(f"decode P{p}", f"decode:B32,S4096,{HEADS},P{p}") for p in sizes]
    prefill = [(f"prefill P{p}", f"prefill:B1,S4096,{HEADS},P{p}") for p in sizes]
    return _row(decode) + _row(prefill)


def _widths() -> list[Case]:
    widths = (64, 80, 96, 128, 256)
    decode = [(f"decode D{d}", f"decode:B32,S4096,H32/8,D{d},P16") for d in widths]
    prefill = [(f"prefill D{d}", f"prefill:B1,S4096,H32/8,D{d},P16") for d in widths]
    return _row(decode) + _row(prefill)


def _groups() -> list[Case]:
    groups = (1, 4, 5, 8)
    decode = [(f"decode group {g}", f"decode:B32,S4096,H{8 * g}/8,D128,P16") for g in groups]
    return _row(decode)


def _queries() -> list[Case]:
    """Speculative decoding: several queries a sequence, no cliff between decode and prefill."""
    target = Target("time", AS_FAST_AS_Q1, ("decode q_len 1",))
    return [
        _case(
            f"decode q_len {t}",
            f"decode:B32,S4096,T{t},{HEADS},P16",
            *([target] if t > 1 else []),
            peers=False,
        )
        for t in range(1, 9)
    ]


def _windows() -> list[Case]:
    short = "decode ctx 1024"
    target = Target("time", WINDOWED, (short,))
    return [
        _case(short, f"decode:B32,S1024,{HEADS},P16", peers=False),
        _case(
            "decode window 1024 at 32768",
            f"decode:B32,S32768,{HEADS},P16,W1024",
            target,
            peers=False,
        ),
    ]


def _unaligned() -> list[Case]:
    """Lengths that fit no tile, beside what padding them to one would be."""
    pairs = [
        ("S577", "full:B64,S577,H16,D64", "S640", "full:B64,S640,H16,D64"),
        ("S197", "full:B128,S197,H12,D64", "S256", "full:B128,S256,H12,D64"),
        ("S4097", f"prefill:B1,S4097,{HEADS},P16", "S4224", f"prefill:B1,S4224,{HEADS},P16"),
        ("ctx 4097", f"decode:B32,S4097,{HEADS},P16", "ctx 4224", f"decode:B32,S4224,{HEADS},P16"),
    ]
    cases = []
    for name, text, padded, padded_text in pairs:
        target = Target("time", PADDED, (padded,))
        cases.append(_case(name, text, target, peers=False))
        cases.append(_case(padded, padded_text, peers=False))
    return cases
