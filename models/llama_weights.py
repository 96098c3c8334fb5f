"""Which tensor of a Llama checkpoint goes where: one row a tensor, one column a format."""

import numpy as np

from models.weights import Entry

# role: (safetensors name, GGUF name)
GLOBAL = {
    "embed": ("model.embed_tokens.weight", "token_embd.weight"),
    "norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
}
PER_LAYER = {
    "attention_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "out": ("self_attn.o_proj.weight", "attn_output.weight"),
    "out_bias": ("self_attn.o_proj.bias", "attn_output.bias"),
    "mlp_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
    "gate_bias": ("mlp.gate_proj.bias", "ffn_gate.bias"),
    "up_bias": ("mlp.up_proj.bias", "ffn_up.bias"),
    "down_bias": ("mlp.down_proj.bias", "ffn_down.bias"),
}


def hf_table(config, copies=1):
    """name -> Entry for safetensors files as transformers writes them. `copies`: how often the
    model of this config has each kv head of the file."""
    return _table(config, copies, lambda i: f"model.layers.{i}.", column=0, interleaved=False)


def gguf_table(config, copies=1):
    """name -> Entry for GGUF files. llama.cpp's converter interleaves the rows of each q and k head
    for architecture "llama" (Llama, Mistral, SmolLM2) and leaves Qwen's alone."""
    interleaved = config.family == "llama"
    return _table(config, copies, lambda i: f"blk.{i}.", column=1, interleaved=interleaved)


def hf_ignored(config, name):
    """Whether an extra safetensors name is harmless: old rotary buffers, and a copy of a tied
    head."""
    return name.endswith("rotary_emb.inv_freq") or (
        config.tie_embeddings and name == "lm_head.weight"
    )


def gguf_ignored(config, name):
    """Whether an extra GGUF name is harmless: the RoPE divisors are part of the config."""
    return name == "rope_freqs.weight"


def _table(config, copies, prefix, column, interleaved):
    table = {GLOBAL[role][column]: entry for role, entry in _global_entries(config).items()}
    for i in range(config.num_layers):
        for role, entry in _layer_entries(config, copies, ("layers", i), interleaved).items():
            table[prefix(i) + PER_LAYER[role][column]] = entry
    return table


def _global_entries(c):
    size = (c.vocab_size, c.hidden_size)
    entries = {
        "embed": Entry(("embed",), size),
        "norm": Entry(("norm", "weight"), (c.hidden_size,)),
    }
    return entries if c.tie_embeddings else entries | {"head": Entry(("head",), size)}


def _layer_entries(c, copies, at, interleaved):
    hidden, ff, kv_heads = c.hidden_size, c.intermediate_size, c.num_kv_heads // copies
    # (role, rows, part of the [K, G + 2, ...] axes, heads whose rows a GGUF of "llama" interleaves)
    qkv = (
        ("q", c.num_heads * c.head_dim, np.s_[:, :-2], c.num_heads, 1),
        ("k", kv_heads * c.head_dim, np.s_[:, -2], kv_heads, copies),
        ("v", kv_heads * c.head_dim, np.s_[:, -1], 0, copies),
    )
    attention, mlp = (*at, "attention"), (*at, "mlp")
    entries = {
        "attention_norm": Entry((*at, "attention_norm", "weight"), (hidden,)),
        "out": Entry((*attention, "out"), (hidden, c.num_heads * c.head_dim)),
        "mlp_norm": Entry((*at, "mlp_norm", "weight"), (hidden,)),
        "gate": Entry((*mlp, "gate_up"), (ff, hidden), (0,)),
        "up": Entry((*mlp, "gate_up"), (ff, hidden), (1,)),
        "down": Entry((*mlp, "down"), (hidden, ff)),
    }
    for role, rows, part, heads, times in qkv:
        how = (part, heads if interleaved else 0, times)
        entries[role] = Entry((*attention, "qkv"), (rows, hidden), *how)
        if c.qkv_bias:
            entries[f"{role}_bias"] = Entry((*attention, "qkv_bias"), (rows,), *how)
    if c.out_bias:
        entries["out_bias"] = Entry((*attention, "out_bias"), (hidden,))
    if c.qk_norm:
        for role in ("q_norm", "k_norm"):
            entries[role] = Entry((*attention, role, "weight"), (c.head_dim,))
    if c.mlp_bias:
        entries["gate_bias"] = Entry((*mlp, "gate_up_bias"), (ff,), (0,))
        entries["up_bias"] = Entry((*mlp, "gate_up_bias"), (ff,), (1,))
        entries["down_bias"] = Entry((*mlp, "down_bias"), (hidden,))
    return entries
