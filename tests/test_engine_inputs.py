"""What the runner hands to the model: the batch contract, whatever the step before was."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxattn.engine.buckets import (
    Bucket,
    all_buckets,
    buckets_for,
    power_of_two,
    smallest_holding,
)
from jaxattn.engine.inputs import StepInputs, packed_size, unpack
from jaxattn.engine.scheduler import Chunk
from jaxattn.engine.sequence import SamplingParams, Sequence

BUCKET = Bucket(16, 4)
WIDTH, PAGE_SIZE = 6, 4


def arrays(inputs):
    batch, rows = unpack(jnp.asarray(inputs.packed.copy()), BUCKET, WIDTH)
    both = dataclasses.asdict(batch) | dataclasses.asdict(rows)
    return {name: np.asarray(array) for name, array in both.items()}


def six_sequences():
    return [
        Sequence(
            index, [100 * index + i for i in range(24)], 24, 25, seed=index * 2**33 + index,
            params=SamplingParams(temperature=index / 2, top_k=index, top_p=1 - index / 10),
        )
        for index in range(6)
    ]  # fmt: skip


def next_chunks(draw, sequences):
    """Chunks of up to four sequences, which grow, and are preempted now and then."""
    # Mostly the same rows, as when decoding, so that what a row kept from before matters.
    order = sequences if draw(st.booleans()) else draw(st.permutations(sequences))
    chunks, room = [], BUCKET.tokens
    for sequence in order[: draw(st.integers(1, 4))]:
        if draw(st.integers(0, 3)) == 0:
            sequence.pages = []
            sequence.num_preemptions += 1
            sequence.num_cached = 0
        length = min(draw(st.integers(1, 9)), room, 24 - sequence.num_cached)
        if length:
            needed = -(-(sequence.num_cached + length) // PAGE_SIZE)
            while len(sequence.pages) < needed:
                sequence.pages.append(draw(st.integers(0, 50)))
            chunks.append(Chunk(sequence, sequence.num_cached, length))
            room -= length
    return chunks


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 6))
def test_every_step_says_what_its_chunks_say(data, count):
    """The arrays are reused: what a step leaves behind must not show in the next."""
    inputs = StepInputs(BUCKET, WIDTH, PAGE_SIZE)
    sequences = six_sequences()
    for _ in range(count):
        chunks = next_chunks(data.draw, sequences)
        inputs.fill(chunks)
        got = arrays(inputs)
        row = 0
        for n, (sequence, start, length) in enumerate(chunks):
            positions = range(start, start + length)
            at = slice(row, row + length)
            assert got["tokens"][at].tolist() == sequence.token_ids[start : start + length]
            assert got["positions"][at].tolist() == list(positions)
            slots = [sequence.pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in positions]
            assert got["slots"][at].tolist() == slots
            pages = len(sequence.pages)
            assert got["block_tables"][n, :pages].tolist() == list(sequence.pages)
            assert got["seq_lens"][n] == start + length
            assert got["cu_q_lens"][n : n + 2].tolist() == [row, row + length]
            assert got["temperature"][n] == np.float32(sequence.params.temperature)
            assert got["top_k"][n] == sequence.params.top_k
            assert got["top_p"][n] == np.float32(sequence.params.top_p)
            assert got["seeds"][n].tolist() == [2 * sequence.index, sequence.index]
            row += length
        assert (got["slots"][row:] == -1).all()
        assert not got["tokens"][row:].any()
        assert not got["positions"][row:].any()
        assert (got["cu_q_lens"][len(chunks) :] == row).all()
        for name in ("seq_lens", "block_tables", "temperature"):
            assert not got[name][len(chunks) :].any()
        for chunk in chunks:
            chunk.sequence.num_cached = chunk.start + chunk.length


def test_packing_is_one_array_and_a_view():
    inputs = StepInputs(BUCKET, WIDTH, PAGE_SIZE)
    assert inputs.packed.shape == (packed_size(BUCKET, WIDTH),)
    assert np.shares_memory(inputs.seeds, inputs.packed)
    assert inputs.temperature.dtype == np.float32
    shapes = jax.eval_shape(lambda x: unpack(x, BUCKET, WIDTH), inputs.packed)
    assert shapes[0].block_tables.shape == (4, 6)
    assert shapes[0].cu_q_lens.shape == (5,)
    assert shapes[1].seeds.dtype == jnp.uint32


def test_powers_of_two():
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 512, 513)] == [1, 2, 4, 4, 8, 512, 1024]


@given(st.integers(1, 40), st.integers(1, 600), st.sampled_from([2, 4, 8]), st.data())
def test_every_step_has_a_bucket(max_seqs, max_tokens, growth, data):
    max_tokens = max(max_tokens, max_seqs)
    buckets = all_buckets(max_tokens, max_seqs, growth)
    seqs = data.draw(st.integers(1, max_seqs))
    tokens = data.draw(st.integers(seqs, max_tokens))
    best = smallest_holding(buckets, tokens, seqs)
    assert best.tokens >= tokens
    assert best.seqs >= seqs
    assert all(n == power_of_two(n) for bucket in buckets for n in bucket)


def test_one_prompt_needs_two_buckets():
    assert buckets_for([37], 512, 8) == [(1, 1), (64, 1)]
    assert buckets_for([3000], 512, 8) == [(1, 1), (512, 1)]
    assert buckets_for([1], 512, 8) == [(1, 1)]


def test_many_prompts_need_few_buckets():
    assert buckets_for([30] * 8, 512, 8) == [(2, 2), (8, 8), (256, 8)]
    # More prompts than seats: the later ones join one by one.
    assert buckets_for([30] * 20, 512, 8) == [(2, 2), (8, 8), (64, 8), (256, 8)]
    # Short prompts that may have to be computed again with all they generated.
    assert buckets_for([3] * 2, 512, 8, longest_recompute=100) == [(2, 2), (128, 2)]
    assert smallest_holding([Bucket(2, 2), Bucket(8, 8)], 9, 1) is None
