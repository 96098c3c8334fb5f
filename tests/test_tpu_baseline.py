"""The kernels' figures on TPUs, by the compiler's static schedule, against those on record.

`python -m scripts.benchmark_tpu --topology v6e:1x1 --json docs/benchmarks/tpu/v6e.json`, and so for
every generation, records them anew.
"""

import pytest
import tpu_compiler

from scripts.tpu import baseline, chips, document, suites, ways
from scripts.tpu.workers import Worker

pytestmark = pytest.mark.skipif(
    tpu_compiler.version() is None, reason="libtpu is not installed; it is in the extra `dev`"
)
# What ordinary runs compile, on one generation.
QUICK = {"v6e": ("ViT-L/14-336", "causal 2k", "decode B64 P128")}


@pytest.fixture(scope="module", params=list(chips.SMALLEST))
def worker(request):
    with Worker(chips.SMALLEST[request.param]) as worker:
        yield worker


def pairs():
    for generation, topology in chips.SMALLEST.items():
        if not baseline.path_of(topology).exists():
            continue
        for case in suites.suite("all"):
            quick = case.name in QUICK.get(generation, ())
            marks = () if quick else pytest.mark.every_chip
            yield pytest.param(generation, case.name, marks=marks)


@pytest.mark.parametrize(("worker", "case"), list(pairs()), indirect=["worker"])
def test_no_figure_got_worse(worker, case):
    record = document.read(baseline.path_of(worker.topology))
    before = baseline.recorded(record, case)
    now = worker.figures(case, ways.OURS)
    assert "error" not in now, now
    worse = baseline.worse(now, before, baseline.same_compiler(record))
    assert not worse, f"{worker.topology}, {case}: {'; '.join(worse)}"
