"""Pages and the scheduler, without arrays: what must hold after every step of any workload."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxattn.engine.pages import PageAllocator, pages_for
from jaxattn.engine.scheduler import Scheduler
from jaxattn.engine.sequence import Sequence


def request(index, prompt, new):
    return Sequence(index, list(range(prompt)), prompt, max_tokens=prompt + new)


@given(st.lists(st.integers(-8, 8)), st.integers(1, 20))
def test_every_page_is_free_once_or_owned_once(operations, num_pages):
    pages = PageAllocator(num_pages)
    owned = []
    for count in operations:
        if count > pages.num_free:
            with pytest.raises(ValueError, match="count must be"):
                pages.allocate(count)
        elif count >= 0:
            owned.append(pages.allocate(count))
        elif owned:
            pages.free(owned.pop(count % len(owned)))
        taken = [page for group in owned for page in group]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(num_pages))
        assert pages.num_free == num_pages - len(taken)


def test_freeing_twice_or_a_foreign_page_is_refused():
    pages = PageAllocator(4)
    taken = pages.allocate(2)
    pages.free(taken)
    for page in (taken[0], 3, 4, -1):
        with pytest.raises(ValueError, match=f"page {page} is not owned"):
            pages.free([page])
    assert pages.num_free == 4


@pytest.mark.parametrize(
    ("tokens", "size", "pages"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (7, 1, 7)]
)
def test_pages_for(tokens, size, pages):
    assert pages_for(tokens, size) == pages


def check(scheduler, chunks, budget):
    """What holds between `schedule` and `advance`."""
    assert sum(chunk.length for chunk in chunks) <= budget
    assert len(scheduler.running) <= scheduler.max_num_seqs
    assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks)
    for sequence, start, length in chunks:
        assert length >= 1
        assert start == sequence.num_cached
        assert start + length <= len(sequence.token_ids)
        # Enough for what is stored, and nothing held beyond the last known token's page.
        assert len(sequence.pages) == pages_for(len(sequence.token_ids), scheduler.page_size)
    everyone = [*scheduler.running, *scheduler.waiting]
    # In order of arrival, and nobody waits while a later one runs.
    assert [s.index for s in everyone] == sorted(s.index for s in everyone)
    owned = [page for sequence in everyone for page in sequence.pages]
    assert len(set(owned)) == len(owned)
    assert scheduler.pages.num_free == scheduler.pages.num_pages - len(owned)
    for sequence in scheduler.waiting:
        assert sequence.pages == []
        assert sequence.num_cached == 0


def serve(scheduler, arrivals, stops, limit=5000):
    """Run to the end. arrivals: sequences by the step they come in. stops: early ends by index.

    Returns the finished sequences and the steps that had a prompt chunk beside a decode.
    """
    finished, mixed = [], 0
    for step in range(limit):
        for sequence in arrivals.pop(step, []):
            scheduler.add(sequence)
        if not arrivals and not scheduler.has_work:
            return finished, mixed
        chunks = scheduler.schedule()
        check(scheduler, chunks, scheduler.max_num_batched_tokens)
        if scheduler.has_work:
            assert chunks, "work but nothing scheduled: a livelock"
            first = min(s.index for s in [*scheduler.running, *scheduler.waiting])
            assert chunks[0].sequence.index == first, "the first request must always move"
        mixed += any(c.is_decode for c in chunks) and any(not c.is_decode for c in chunks)
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        scheduler.advance(chunks)
        for sequence in sampling:
            assert sequence.num_pending == 0
            sequence.token_ids.append(len(sequence.token_ids))
            ended = len(sequence.output_ids) == stops.get(sequence.index)
            if ended or len(sequence.token_ids) == sequence.max_tokens:
                scheduler.remove(sequence)
                finished.append(sequence)
    raise AssertionError(f"not finished after {limit} steps")


@st.composite
def workloads(draw):
    page_size = draw(st.sampled_from([1, 2, 4, 16]))
    sizes = draw(
        st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=12)
    )
    largest = max(pages_for(prompt + new - 1, page_size) for prompt, new in sizes)
    num_pages = largest + draw(st.integers(0, 3 * largest))
    max_num_seqs = draw(st.integers(1, 8))
    budget = max_num_seqs + draw(st.integers(0, 30))
    scheduler = Scheduler(num_pages, page_size, max_num_seqs, budget)
    arrivals = collections.defaultdict(list)
    step = 0
    for index, (prompt, new) in enumerate(sizes):
        step += draw(st.integers(0, 6))
        arrivals[step].append(request(index, prompt, new))
    stops = draw(st.dictionaries(st.integers(0, 11), st.integers(1, 20)))
    return scheduler, arrivals, stops, sizes


@settings(max_examples=300, deadline=None)
@given(workloads())
def test_every_request_finishes_within_budget_and_pages(workload):
    scheduler, arrivals, stops, sizes = workload
    finished, _ = serve(scheduler, arrivals, stops)
    assert sorted(sequence.index for sequence in finished) == list(range(len(sizes)))
    for sequence in finished:
        prompt, new = sizes[sequence.index]
        count = min(new, stops.get(sequence.index, new))
        assert sequence.token_ids == list(range(prompt + count))  # none lost in a preemption
    assert scheduler.pages.num_free == scheduler.pages.num_pages


def test_chunks_of_a_prompt_run_beside_decodes():
    scheduler = Scheduler(num_pages=100, page_size=4, max_num_seqs=4, max_num_batched_tokens=8)
    arrivals = {0: [request(0, 3, 10)], 2: [request(1, 30, 5)]}
    finished, mixed = serve(scheduler, arrivals, {})
    assert mixed >= 4  # 30 tokens at 7 a step, the decode's one kept
    assert finished[0].num_preemptions == finished[1].num_preemptions == 0


def test_the_last_to_come_is_preempted_and_recomputed_from_nothing():
    scheduler = Scheduler(num_pages=8, page_size=4, max_num_seqs=4, max_num_batched_tokens=64)
    first, second = request(0, 4, 28), request(1, 4, 28)
    finished, _ = serve(scheduler, {0: [first, second]}, {})
    assert finished == [first, second]
    assert first.num_preemptions == 0
    assert second.num_preemptions >= 1
    assert scheduler.num_preemptions == second.num_preemptions


def test_preemption_is_rare_when_headroom_is_kept():
    """Without headroom a request comes back only to lose its pages at once, over and over."""
    scheduler = Scheduler(num_pages=40, page_size=1, max_num_seqs=8, max_num_batched_tokens=64)
    requests = [request(index, 5, 30) for index in range(8)]
    serve(scheduler, {0: requests}, {})
    assert 1 <= scheduler.num_preemptions <= 2 * len(requests)


def test_a_request_larger_than_the_whole_cache_is_refused():
    scheduler = Scheduler(num_pages=3, page_size=4, max_num_seqs=4, max_num_batched_tokens=8)
    scheduler.add(request(0, 6, 7))  # 12 stored: the last token never is
    with pytest.raises(ValueError, match=r"the request may need 4 cache pages.*num_pages is 3"):
        scheduler.add(request(1, 6, 8))
    with pytest.raises(ValueError, match="num_pages must be at least 1, got 0"):
        Scheduler(num_pages=0, page_size=4, max_num_seqs=4, max_num_batched_tokens=8)


def test_a_removed_request_frees_its_pages_wherever_it_is():
    scheduler = Scheduler(num_pages=4, page_size=4, max_num_seqs=1, max_num_batched_tokens=8)
    running, waiting = request(0, 8, 4), request(1, 8, 4)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.advance(scheduler.schedule())
    assert scheduler.pages.num_free == 2
    scheduler.remove(running)
    scheduler.remove(waiting)
    assert scheduler.pages.num_free == 4
    assert not scheduler.has_work
