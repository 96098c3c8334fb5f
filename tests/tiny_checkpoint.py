"""A 2-layer Llama checkpoint with random weights and a byte-level tokenizer, for the scripts."""

import json

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

CONTEXT = 256
SPECIAL = ["<s>", "</s>"]
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def write(folder):
    """Write config.json, model.safetensors and the tokenizer's files into `folder`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(SPECIAL + alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocab),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors(config), str(folder / "model.safetensors"))
    return folder


def tensors(config):
    rng = np.random.default_rng(3)
    size, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = size // config["num_attention_heads"] * config["num_key_value_heads"]

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) * 2 / np.sqrt(columns)).astype(np.float32)

    found = {
        "model.embed_tokens.weight": matrix(vocab, size),
        "model.norm.weight": np.ones(size, np.float32),
        "lm_head.weight": matrix(vocab, size) * 3,
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", size, size), ("self_attn.k_proj", kv, size),
            ("self_attn.v_proj", kv, size), ("self_attn.o_proj", size, size),
            ("mlp.gate_proj", inner, size), ("mlp.up_proj", inner, size),
            ("mlp.down_proj", size, inner),
        ):  # fmt: skip
            found[f"{prefix}{name}.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{name}.weight"] = np.ones(size, np.float32)
    return found
