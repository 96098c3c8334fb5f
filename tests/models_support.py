"""Write the tiny models of golden/families.py in every format, and run loaded models."""

import json
import math
import string
import sys
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from safetensors.numpy import save_file

import jaxattn

GOLDEN = Path(__file__).parent / "golden"
sys.path.append(str(GOLDEN))
import families  # noqa: E402
import ropes  # noqa: E402

__all__ = ["GOLDEN", "families", "greedy", "ropes", "teacher_forced", "write_gguf", "write_hf"]

PAGE = 8
# A vocabulary of 64 for models that are only asked for logits: specials, one merge, letters and
# digits.
TOKENS = ["<unk>", "<s>", "</s>", "ab", *(string.ascii_letters + string.digits)[:60]]
# Tiny models take longer to compile than to run.
HURRY = {"xla_backend_optimization_level": 0}


def write_hf(folder, raw, weights, shards=1):
    """A Hugging Face directory: config.json, tokenizer.json, one safetensors file or `shards`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    _tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    index = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in list(weights)[i::shards]}
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    text = json.dumps({"metadata": {"total_size": 0}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


def _tiny_tokenizer():
    vocab = {token: i for i, token in enumerate(TOKENS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(TOKENS[:3])
    return tokenizer


# llama.cpp's names for the tensors of a layer, written out again rather than taken from models/.
GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GGUF_GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(path, raw, weights, kind=None, extra=None):
    """A GGUF file as llama.cpp's converter makes it: Mistral as "llama", q and k of "llama"
    permuted, the llama3 RoPE scaling as a tensor. kind: a gguf quantisation for the matrices it
    fits.
    extra: more metadata, key -> int."""
    arch = {"mistral": "llama"}.get(raw["model_type"], raw["model_type"])
    heads = raw["num_attention_heads"]
    kv_heads = raw["num_key_value_heads"] or heads
    head_dim = raw.get("head_dim") or raw["hidden_size"] // heads
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(raw["vocab_size"])
    if raw["model_type"] == "mistral" and raw["sliding_window"]:
        writer.add_sliding_window(raw["sliding_window"])
    _write_rope(writer, raw, head_dim)
    _write_tokenizer(writer, raw)
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value)
    for name, tensor in weights.items():
        if arch == "llama" and "q_proj" in name:
            tensor = _permute(tensor, heads)
        if arch == "llama" and "k_proj" in name:
            tensor = _permute(tensor, kv_heads)
        _write_tensor(writer, _gguf_name(name), tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tensor(writer, name, tensor, kind):
    if (
        kind is not None
        and tensor.ndim == 2
        and tensor.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
    ):
        writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, tensor)


def _gguf_name(name):
    if name in GGUF_GLOBAL:
        return GGUF_GLOBAL[name]
    _, _, layer, rest = name.split(".", 3)
    base, ending = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_LAYER[base]}.{ending}"


def _permute(tensor, heads):
    """Rows of each head from (0, 1, 2, ...) to (0, D/2, 1, D/2 + 1, ...)."""
    split = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(tensor.shape))


def _write_rope(writer, raw, head_dim):
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = given.get("rope_theta", raw.get("rope_theta", 10000.0))
    writer.add_rope_freq_base(theta)
    kind = given.get("rope_type", given.get("type"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(given["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(given["original_max_position_embeddings"])
        if "beta_fast" in given:
            writer.add_float32(f"{writer.arch}.rope.scaling.yarn_beta_fast", given["beta_fast"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(given, theta, head_dim))


def _llama3_divisors(given, theta, head_dim):
    factor, low, high = (given[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
    old = given["original_max_position_embeddings"]
    divisors = []
    for i in range(0, head_dim, 2):
        length = 2 * math.pi * theta ** (i / head_dim)
        if length < old / high:
            divisors.append(1.0)
        elif length > old / low:
            divisors.append(factor)
        else:
            smooth = (old / length - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def _write_tokenizer(writer, raw):
    eos = raw["eos_token_id"]
    eos = eos if isinstance(eos, list) else [eos]
    kinds = [2, 3, 3] + [1] * (len(TOKENS) - 3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(raw["bos_token_id"])
    for name, token in zip(("eos", "eot", "eom"), eos, strict=False):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)


def new_caches(spec, tokens, page=PAGE):
    """One empty cache a layer with room for `tokens` in all."""
    pages = -(-tokens // page)
    sizes = (spec["num_kv_heads"], spec["head_dim"])
    return tuple(
        jaxattn.PagedKV.create(pages, page, *sizes, dtype=spec["dtype"])
        for _ in range(spec["num_layers"])
    )


def one_sequence(ids, start, pages):
    """A Batch of one sequence in the pages 0, 1, ...: `ids` stand at positions from `start` on."""
    span = jnp.arange(start, start + len(ids), dtype=jnp.int32)
    table = jnp.arange(pages, dtype=jnp.int32)[None]
    length, cu = jnp.array([start + len(ids)], jnp.int32), jnp.array([0, len(ids)], jnp.int32)
    return jaxattn.Batch(jnp.array(ids, jnp.int32), span, span, table, length, cu)


def teacher_forced(loaded, texts, counts, sizes=None, step=None):
    """Logits that predict the last `counts[i]` ids of each text and the one after: one prefill.

    Row r of a text is a sequence of its own with one query that shares the text's pages: every
    position's logits come out of a model that returns only those of a sequence's last token.
    sizes: (T, N, W, P), what to pad tokens, sequences, page tables and the pages of a cache to, so
    that calls share a compilation.
    step: `loaded.step` under the caller's own jit.

    Returns a list of f32 [counts[i] + 1, vocab].
    """
    lengths = [len(text) for text in texts]
    firsts = [n - count for n, count in zip(lengths, counts, strict=True)]
    total_rows = sum(count + 1 for count in counts)
    width = max(-(-n // PAGE) for n in lengths)
    t, n, w, pages = sizes or (sum(lengths), total_rows, width, len(texts) * width)
    tokens, positions, slots = (np.full(t, fill, np.int32) for fill in (0, 0, -1))
    tables, seq_lens = np.zeros((n, w), np.int32), np.zeros(n, np.int32)
    cu, at, row, page = [0], 0, 0, 0
    for text, length, first in zip(texts, lengths, firsts, strict=True):
        own = slice(at, at + length)
        tokens[own], positions[own] = text, np.arange(length)
        slots[own] = page * PAGE + np.arange(length)
        ends = np.arange(first, length + 1)  # keys that each row's query sees
        tables[row : row + len(ends), : -(-length // PAGE)] = page + np.arange(-(-length // PAGE))
        seq_lens[row : row + len(ends)] = ends
        cu += [at + int(end) for end in ends]
        at, row, page = at + length, row + len(ends), page + -(-length // PAGE)
    cu += [at] * (n + 1 - len(cu))
    arrays = (tokens, positions, slots, tables, seq_lens, np.array(cu, np.int32))
    caches = new_caches(loaded.cache_spec, pages * PAGE)
    step = step or jax.jit(loaded.step, compiler_options=HURRY)
    logits, _ = step(loaded.params, jaxattn.Batch(*map(jnp.asarray, arrays)), caches)
    return np.split(np.asarray(logits[:total_rows]), np.cumsum([c + 1 for c in counts])[:-1])


def greedy(loaded, prompt, count):
    """`count` greedy ids after `prompt`, every token in a step of its own."""
    ids = [int(i) for i in prompt]
    pages = -(-(len(ids) + count) // PAGE)
    caches = new_caches(loaded.cache_spec, pages * PAGE)
    step = jax.jit(loaded.step, donate_argnums=2, compiler_options=HURRY)
    for position in range(len(ids) + count - 1):
        batch = one_sequence(ids[position : position + 1], position, pages)
        logits, caches = step(loaded.params, batch, caches)
        if position == len(ids) - 1:
            ids.append(int(logits[0].argmax()))
    return ids[-count:]
