"""`load_vision`: one call from a directory or Hub id to a vision model that is ready to run."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from models import catalog, preprocessing, vision_config_hf, vision_weights, weights
from models.load import DTYPES
from models.pair import Pair
from models.preprocessing import Processor
from models.safetensors_files import SafetensorsSource, read_json
from models.text_inputs import tokenizer_of_pair
from models.vision import VisionTower
from models.vision_config import PairConfig, VisionConfig
from models.wording import one_line, shown


@dataclasses.dataclass(frozen=True)
class LoadedVision:
    """A vision model: pure functions over its flat parameters, each to be jitted as it is used.

    encode(params, images) -> VisionOutput. images: f32 [B, H, W, 3], or a list of [H, W, 3] of any
    sizes, as `processor(PIL image)` makes them.
    classify(params, images) -> f32 [B, labels]; None without a classifier.
    Of a pair, else None: image_features(params, images) -> [B, features];
    text_features(params, ids) -> [B, features], ids i32 [B, L] from `tokenize(texts)`
    (None without a vocabulary in the directory);
    logits(params, image_features, text_features) -> f32 [images, texts];
    scores(params, logits) -> f32 [images, texts], from 0 to 1.
    """

    config: VisionConfig | PairConfig
    params: list
    processor: Processor
    encode: Callable
    classify: Callable | None = None
    image_features: Callable | None = None
    text_features: Callable | None = None
    logits: Callable | None = None
    scores: Callable | None = None
    tokenize: Callable | None = None

    @property
    def vision(self):
        """The VisionConfig of the tower."""
        return self.config.vision if isinstance(self.config, PairConfig) else self.config


def load_vision(name_or_path, *, dtype="float32", implementation=None):
    """Read the Hugging Face directory, or Hub id, of a ViT, DINOv2, CLIP or SigLIP.

    dtype: of weights and activations, whatever the file stores. implementation: as in
    `jaxattn.attention`. Raises FileNotFoundError, ConnectionError or ValueError, each with one line
    that says what is wrong; weights are read last.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {shown(dtype)} is not supported; one of {', '.join(DTYPES)} is")
    folder = catalog.resolve(name_or_path)
    try:
        if not folder.is_dir():
            raise ValueError(f"{folder} is a file; a vision model is a directory with config.json")
        config, table, source = _read(folder)
        processor = _processor(folder, config)
        pair = isinstance(config, PairConfig)
        tokenize = tokenizer_of_pair(folder, config) if pair else None
    except ValueError as error:
        where = "" if str(folder) in str(error) else f"{folder}: "
        raise ValueError(where + one_line(error)) from None
    graphdef, state = abstract(config, jnp.dtype(dtype), implementation)
    params = weights.fill(table, state, source, jnp.dtype(dtype))
    return LoadedVision(
        config, params, processor, tokenize=tokenize, **functions(config, graphdef, state)
    )


def abstract(config, dtype=jnp.float32, implementation=None):
    """(graphdef, state) of the model with ShapeDtypeStructs for weights: nothing is allocated."""
    kind = Pair if isinstance(config, PairConfig) else VisionTower

    def build():
        return kind(config, rngs=nnx.Rngs(0), dtype=dtype, implementation=implementation)

    return nnx.split(nnx.eval_shape(build))


def functions(config, graphdef, state):
    """name -> pure function of the flat leaves of `state` and its other arguments."""
    treedef = jax.tree.structure(state)

    def pure(call):
        def run(params, *args):
            return call(nnx.merge(graphdef, jax.tree.unflatten(treedef, params)), *args)

        return run

    if isinstance(config, PairConfig):
        return {
            "encode": pure(lambda model, images: model.vision(images)),
            "image_features": pure(Pair.get_image_features),
            "text_features": pure(Pair.get_text_features),
            "logits": pure(Pair.logits),
            "scores": pure(Pair.scores),
        }
    found = {"encode": pure(lambda model, images: model(images))}
    if config.labels:
        found["classify"] = pure(lambda model, images: model.logits(model(images)))
    return found


def _read(folder):
    """(config, table, source) of a directory; the weights fit but are not read."""
    config = vision_config_hf.from_hf(read_json(folder / "config.json"))
    source = SafetensorsSource(folder)
    pooler = not isinstance(config, PairConfig) and config.pooling == "tanh"
    if pooler and "pooler.dense.weight" not in source.shapes:
        # Self-supervised ViTs (DINO, MAE) come without one; their class token is the image's.
        config = dataclasses.replace(config, pooling="class")
    table = vision_weights.hf_table(config)
    shapes = source.shapes
    if isinstance(config, VisionConfig) and config.family in ("clip", "siglip"):
        # A tower's config beside the weights of the pair: the rest is not needed.
        shapes = {name: shape for name, shape in shapes.items() if name.startswith("vision_model.")}
    weights.check(table, shapes, vision_weights.ignored, folder)
    return config, table, source


def _processor(folder, config):
    path = folder / "preprocessor_config.json"
    if path.is_file():
        return preprocessing.from_hf(read_json(path))
    return preprocessing.default(config.vision if isinstance(config, PairConfig) else config)
