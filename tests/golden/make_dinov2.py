"""Make dinov2_small.npz: what onnxruntime computes for the real DINOv2-small of the ONNX file.

Run in an environment with onnx, onnxruntime, Pillow, torch and transformers (the project needs none
of these but Pillow), with the file that models/dinov2_small.py fetches:

    python tests/golden/make_dinov2.py vit_s_focus.onnx

The picture is photo.png (a part of NASA's portrait of Eileen Collins, public domain, at 200 x 240),
brought to 224 x 224 by transformers; and the same at 210 x 322 by plain resizing. Per size:
`<h>x<w>_sketch` f32 [14, T], one number of every token of the embeddings, of each layer's output
and of the last hidden state, and `_sample` f32 [14, n], every 97th entry of them.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import vision
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

HERE = Path(__file__).parent
LAYERS = 12
NORM = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
STRIDE = 97


def session(path):
    """An onnxruntime session that gives the hidden states, for images of any size."""
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
    names = ["/backbone/embeddings/Add_output_0"]
    names += [f"/backbone/encoder/layer.{i}/Add_1_output_0" for i in range(LAYERS)]
    names += ["/backbone/layernorm/Add_1_output_0"]
    del model.graph.output[:]
    for name in names:
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return onnxruntime.InferenceSession(model.SerializeToString())


def pixels(photo):
    """(height, width) -> f32 [1, 3, height, width]."""
    whole = BitImageProcessorPil(size={"shortest_edge": 256}, **NORM)
    plain = BitImageProcessorPil(size={"height": 210, "width": 322}, do_center_crop=False, **NORM)
    return {
        (224, 224): np.stack(whole(photo)["pixel_values"]),
        (210, 322): np.stack(plain(photo)["pixel_values"]),
    }


def main(path):
    """Write dinov2_small.npz beside this file."""
    arrays, run = {}, session(path)
    for (height, width), image in pixels(Image.open(HERE / "photo.png")).items():
        hidden = [x[0] for x in run.run(None, {"input_image": image})]
        print(height, width, hidden[0].shape, [round(float(x.std()), 2) for x in hidden])
        key = f"{height}x{width}"
        arrays[f"{key}_sketch"] = np.stack([vision.sketch(x) for x in hidden])
        arrays[f"{key}_sample"] = np.stack([x.ravel()[::STRIDE] for x in hidden])
        if len(sys.argv) > 2:  # everything, to look at
            np.savez(sys.argv[2] + key + ".npz", image=image[0], hidden=np.stack(hidden))
    np.savez_compressed(HERE / "dinov2_small.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
