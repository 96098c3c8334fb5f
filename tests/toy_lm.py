"""A small language model with random weights over the batch contract, for the engine's tests.

Two layers of paged attention with learned-by-nobody position embeddings: each token depends on all
before it, so a lost, doubled or misplaced key changes the ids. `greedy` is its oracle: the same
model over the whole sequence at once, in NumPy and float64, without pages, chunks or batches.
"""

import codecs
import functools

import jax.numpy as jnp
import numpy as np

from jaxattn import paged_attention

VOCAB = 61
DIM = 32
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 8
LAYERS = 2
MAX_POSITIONS = 512
CACHE_SPEC = {
    "num_layers": LAYERS,
    "num_kv_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "dtype": "float32",
}


@functools.cache
def weights() -> dict[str, np.ndarray]:
    """float32 weights; scaled so that the likeliest token depends on far tokens too."""
    rng = np.random.default_rng(7)

    def matrix(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

    params = {"embed": matrix(VOCAB, DIM) * 5, "place": matrix(MAX_POSITIONS, DIM) * 15}
    for layer in range(LAYERS):
        params[f"q{layer}"] = matrix(DIM, HEADS * HEAD_DIM)
        params[f"k{layer}"] = matrix(DIM, KV_HEADS * HEAD_DIM)
        params[f"v{layer}"] = matrix(DIM, KV_HEADS * HEAD_DIM) * 2
        params[f"o{layer}"] = matrix(HEADS * HEAD_DIM, DIM) * 2
    params["logits"] = matrix(DIM, VOCAB) * 4
    return params


def step(params, batch, caches):
    """See jaxattn.engine.runner.Step."""
    x = params["embed"][batch.tokens] + params["place"][batch.positions]
    new_caches = []
    for layer, cache in enumerate(caches):
        q = (x @ params[f"q{layer}"]).reshape(-1, HEADS, HEAD_DIM)
        k = (x @ params[f"k{layer}"]).reshape(-1, KV_HEADS, HEAD_DIM)
        v = (x @ params[f"v{layer}"]).reshape(-1, KV_HEADS, HEAD_DIM)
        cache = cache.append(k, v, batch.slots)
        attended = paged_attention(q, cache, batch.block_tables, batch.seq_lens, batch.cu_q_lens)
        x = x + jnp.tanh(attended.reshape(-1, HEADS * HEAD_DIM) @ params[f"o{layer}"])
        new_caches.append(cache)
    last = jnp.maximum(batch.cu_q_lens[1:] - 1, 0)
    return x[last] @ params["logits"], tuple(new_caches)


def logits(token_ids: list[int]) -> np.ndarray:
    """float64[V]: what follows `token_ids`."""
    params = {name: array.astype(np.float64) for name, array in weights().items()}
    count = len(token_ids)
    x = params["embed"][token_ids] + params["place"][:count]
    causal = np.tril(np.ones((count, count), bool))
    for layer in range(LAYERS):
        q = (x @ params[f"q{layer}"]).reshape(count, HEADS, HEAD_DIM)
        k = (x @ params[f"k{layer}"]).reshape(count, KV_HEADS, HEAD_DIM)
        v = (x @ params[f"v{layer}"]).reshape(count, KV_HEADS, HEAD_DIM)
        k, v = (np.repeat(y, HEADS // KV_HEADS, axis=1) for y in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(HEAD_DIM)
        scores = np.where(causal, scores, -np.inf)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        attended = np.einsum("hts,shd->thd", weight, v).reshape(count, -1)
        x = x + np.tanh(attended @ params[f"o{layer}"])
    return x[-1] @ params["logits"]


def greedy(prompt: list[int], count: int, eos: int | None = None) -> list[int]:
    """`count` likeliest ids after the prompt, or fewer where one is `eos`."""
    token_ids = list(prompt)
    while len(token_ids) < len(prompt) + count and token_ids[len(prompt) :][-1:] != [eos]:
        token_ids.append(int(np.argmax(logits(token_ids))))
    return token_ids[len(prompt) :]


class Tokenizer:
    """Ids 0..57 are letters, and the last three are the bytes of one snowman."""

    LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,!?\n"
    SNOWMAN = "☃".encode()

    def encode(self, text: str) -> list[int]:
        ids = []
        for letter in text:
            if letter == "☃":
                ids += [58, 59, 60]
            else:
                ids.append(self.LETTERS.index(letter))
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return (
            self.LETTERS[token_id].encode() if token_id < 58 else self.SNOWMAN[token_id - 58 :][:1]
        )

    def decode(self, ids: list[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def stream(self):
        return _Stream(self)


class _Stream:
    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
