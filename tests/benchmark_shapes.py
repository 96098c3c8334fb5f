"""Benchmark cases so small that a CPU runs them at once."""

TINY = "decode:B2,S40,H4/2,D16,P8"
SHAPES = [
    "full:B2,S9,H2,D8",
    "prefill:B1,S9,H2,D8",
    "decode:B3,S9,T4,H4/2,D8,P4",
    "decode:B3,S9,T4,H4/2,D8,P4,W3",
    "prefill:B1,S9,H4/2,D8,P4,W3",
    "mixed:L2*1/7+5/9,H4/1,D16,P2",
    "mixed:L1/3+4/4,H4/4,D16,P256,W2",
]
