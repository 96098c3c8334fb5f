"""Make vision.npz: what transformers computes in float32 for the tiny models of vision.py.

Run in an environment with torch, transformers and Pillow (torch and transformers are not needed by
the project):

    python tests/golden/make_vision.py

Each model is saved with transformers' own names and read by the project from that layout; the
shapes are kept here too, as JSON, so that the tests need no torch. Per model and size:
`<name>_<h>x<w>_hidden` f32 [layers + 2, T], the sketches of the embeddings, of every layer's output
and of the last hidden state, and `_pooled`; `_logits` of classifiers. Of pairs `_features`,
`<name>_texts`, `<name>_pair_logits` of the first size, and `<name>_text_hidden`.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
import vision
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent


def build(name, folder):
    """(the model with the weights of vision.py, shapes by the names that files have)."""
    raw = vision.MODELS[name]
    kind = getattr(transformers, raw["architectures"][0])
    config = transformers.AutoConfig.for_model(**raw)
    config._attn_implementation = "eager"
    kind(config).save_pretrained(folder)
    path = Path(folder) / "model.safetensors"
    shapes = {key: list(value.shape) for key, value in load_file(path).items()}
    save_file(vision.weights(name, shapes), path, {"format": "pt"})
    model, info = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    return model.eval(), shapes


def tower_of(model):
    for part in ("vision_model", "vit", "dinov2", "dinov2_with_registers"):
        if hasattr(model, part):
            return getattr(model, part)
    return model


def images(name, model, arrays):
    raw, family = vision.MODELS[name], vision.MODELS[name]["model_type"]
    tower = tower_of(model)
    more = {} if family.startswith("dinov2") else {"interpolate_pos_encoding": True}
    for size in vision.SIZES[name]:
        pixels = torch.from_numpy(vision.image(name, size)).permute(2, 0, 1)[None]
        out = tower(pixels, output_hidden_states=True, **more)
        key = f"{name}_{size[0]}x{size[1]}"
        hidden = [x[0].numpy() for x in (*out.hidden_states, out.last_hidden_state)]
        assert len(hidden) == tower.config.num_hidden_layers + 2
        arrays[f"{key}_hidden"] = np.stack([vision.sketch(x) for x in hidden])
        print(f"{key:28} {hidden[0].shape} spread {[round(float(x.std()), 2) for x in hidden]}")
        if out.pooler_output is not None:
            arrays[f"{key}_pooled"] = out.pooler_output[0].numpy()
        if raw["architectures"][0].endswith("Classification"):
            arrays[f"{key}_logits"] = model(pixels, **more).logits[0].numpy()
        if family in ("clip", "siglip"):
            features = model.get_image_features(pixels, **more)
            arrays[f"{key}_features"] = getattr(features, "pooler_output", features)[0].numpy()


def texts(name, model, arrays):
    ids = torch.from_numpy(vision.texts(name)).long()
    out = model.text_model(ids, output_hidden_states=True)
    hidden = (*out.hidden_states, out.last_hidden_state)
    sketches = [vision.sketch(x.reshape(-1, x.shape[-1]).numpy()) for x in hidden]
    arrays[f"{name}_text_hidden"] = np.stack(sketches)
    features = model.get_text_features(ids)
    arrays[f"{name}_texts"] = getattr(features, "pooler_output", features).numpy()
    pixels = torch.from_numpy(vision.image(name, vision.SIZES[name][0])).permute(2, 0, 1)[None]
    logits = model(input_ids=ids, pixel_values=pixels).logits_per_image[0].numpy()
    arrays[f"{name}_pair_logits"] = logits
    print(f"{name:28} logits {logits}")


def main():
    """Write vision.npz and vision_shapes.json beside this file."""
    arrays, shapes = {}, {}
    with torch.no_grad():
        for name in vision.MODELS:
            with tempfile.TemporaryDirectory() as folder:
                model, shapes[name] = build(name, folder)
            images(name, model, arrays)
            if "text_config" in vision.MODELS[name]:
                texts(name, model, arrays)
    np.savez_compressed(HERE / "vision.npz", **arrays)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(x)}" for name, x in shapes.items())
    (HERE / "vision_shapes.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
