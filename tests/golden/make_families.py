"""Make families.npz: what transformers computes in float32 for the tiny models of families.py.

Run in an environment with torch and transformers (neither is needed by the project):

    python tests/golden/make_families.py

Per family: `<name>_logits` f32 [40, 64], of every prompt position, and `<name>_ids` i32 [16], the
greedy continuation. Per entry of ROPES: `<name>_inv_freq` and `<name>_factor`, for real models'
sizes.
"""

from pathlib import Path

import families
import numpy as np
import torch
import transformers
from ropes import ROPES
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = Path(__file__).parent


def compute(name):
    """(logits f32 [40, 64], greedy ids [16]) of family `name`."""
    raw = families.FAMILIES[name]
    config = transformers.AutoConfig.for_model(**raw)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    state = {key: torch.from_numpy(value) for key, value in families.weights(name).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = ["lm_head.weight"] if raw["tie_word_embeddings"] else []
    assert list(missing) == tied, missing
    assert not unexpected, unexpected
    ids = torch.from_numpy(families.prompt(name)).long()[None]
    logits = model(ids).logits[0]
    new, margin = [], np.inf
    for _ in range(families.NEW_TOKENS):  # without a cache: nothing but the plain forward
        best = model(ids).logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        new.append(int(best.indices[0]))
        ids = torch.cat([ids, best.indices[None, :1]], dim=1)
    print(f"{name:14} spread {logits.std():.2f}, smallest margin {margin:.4f}: {new}")
    assert margin > 2e-3, "change SALT: a margin this small is a coin toss"
    return logits.numpy(), np.array(new, np.int32)


def rope(raw):
    """(inv_freq f32, factor on cos and sin) of a config with rope scaling."""
    config = transformers.AutoConfig.for_model(**raw)
    inv_freq, factor = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, "cpu")
    return inv_freq.numpy(), np.float32(factor)


def main():
    """Write families.npz beside this file."""
    arrays = {}
    with torch.no_grad():
        for name in families.FAMILIES:
            arrays[f"{name}_logits"], arrays[f"{name}_ids"] = compute(name)
    for name, raw in ROPES.items():
        arrays[f"{name}_inv_freq"], arrays[f"{name}_factor"] = rope(raw)
    np.savez_compressed(HERE / "families.npz", **arrays)


if __name__ == "__main__":
    main()
