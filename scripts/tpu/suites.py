"""The named suites: which attention is compiled. Cases are those of scripts/bench/cases.py."""

import dataclasses

from scripts.bench.cases import Case, parse

LLAMA = "H32/8,D128"  # the attention of Llama-3-8B
SUITES = {
    "vit": {
        "ViT-L/14-336": "full:B1,S577,H16,D64",
        "ViT-B/16-224": "full:B1,S197,H12,D64",
        "SigLIP D72": "full:B1,S729,H16,D72",
    },
    # Short, since the compiler estimates cycles by going through every step.
    "prefill": {
        "causal 2k": "prefill:B1,S2048,H2,D128",
        "full 2k": "full:B1,S2048,H2,D128",
        "causal 2k, group 4": "prefill:B1,S2048,H4/1,D128",
    },
    "decode": {
        "decode B64 P16": f"decode:B64,S2048,{LLAMA},P16",
        "decode B64 P128": f"decode:B64,S2048,{LLAMA},P128",
    },
    "paged": {
        "mixed P128": f"mixed:L7*1/1024+121/1024,{LLAMA},P128",
    },
}
NAMES = tuple(SUITES)


def suite(name: str) -> list[Case]:
    """The cases of a suite; of all suites for "all".

    Raises:
      ValueError: no suite has that name.
    """
    if name == "all":
        return [case for each in NAMES for case in suite(each)]
    if name not in SUITES:
        raise ValueError(f"--suite {name!r}: must be one of {', '.join(NAMES)}, all")
    return [dataclasses.replace(parse(text), name=label) for label, text in SUITES[name].items()]


def case_named(name: str) -> Case:
    """The case of that name. Raises ValueError if there is none."""
    for case in suite("all"):
        if case.name == name:
            return case
    raise ValueError(f"case {name!r}: must be one of {', '.join(c.name for c in suite('all'))}")
