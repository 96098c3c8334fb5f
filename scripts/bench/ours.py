"""How jaxattn computes a case: its public functions with their defaults."""

import jaxattn
from scripts.bench.arrays import Arrays, contiguous
from scripts.bench.cases import Case
from scripts.bench.oracle import mask_of
from scripts.bench.targets import OURS
from scripts.bench.ways import JaxWay


def way(case: Case, compiler: str | None = None) -> JaxWay:
    """``compiler`` is handed on only if it is given."""
    options = {"mask": mask_of(case)} | ({} if compiler is None else {"compiler": compiler})
    if case.page_size is None:
        return JaxWay(
            OURS,
            "",
            lambda q, k, v: jaxattn.attention(q, k, v, **options),
            lambda arrays: contiguous(case, arrays),
        )
    return JaxWay(
        OURS,
        "",
        lambda q, *cache: jaxattn.paged_attention(q, *cache, **options),
        _paged_operands,
    )


def _paged_operands(arrays: Arrays) -> tuple:
    cache = jaxattn.PagedKV(arrays.k.swapaxes(1, 2), arrays.v.swapaxes(1, 2))
    return arrays.q, cache, arrays.tables, arrays.seq_lens, arrays.cu_q_lens
