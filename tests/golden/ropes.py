"""The parts of real models' config.json that decide RoPE, as their makers publish them."""

_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_OLD = {"original_max_position_embeddings": 8192}


def _raw(model_type, hidden, heads, theta, positions, **more):
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "vocab_size": 64,
        "rope_theta": theta,
        "max_position_embeddings": positions,
    } | more


ROPES = {
    "llama_3_1_8b": _raw(
        "llama", 4096, 32, 500000.0, 131072, rope_scaling=_LLAMA3 | _OLD | {"factor": 8.0}
    ),
    "llama_3_2_1b": _raw(
        "llama", 2048, 32, 500000.0, 131072, rope_scaling=_LLAMA3 | _OLD | {"factor": 32.0}
    ),
    "llama_3_3_70b": _raw(
        "llama", 8192, 64, 500000.0, 131072, rope_scaling=_LLAMA3 | _OLD | {"factor": 8.0}
    ),
    "vicuna_16k": _raw(
        "llama", 5120, 40, 10000.0, 4096, rope_scaling={"type": "linear", "factor": 4.0}
    ),
    "qwen_2_5_7b_yarn": _raw(
        "qwen2",
        3584,
        28,
        1000000.0,
        32768,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    "qwen3_8b_yarn": _raw(
        "qwen3",
        4096,
        32,
        1000000.0,
        40960,
        head_dim=128,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
    ),
    "yarn_mscale": _raw(
        "llama",
        4096,
        32,
        10000.0,
        163840,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    ),
}
