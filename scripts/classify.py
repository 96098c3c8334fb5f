"""Say what images show: `python -m scripts.classify --help`."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from scripts import console
from scripts.console import say
from scripts.vision_options import add_image_options, batches, load_vision_model

PROG = "classify"
TEMPLATE = "This is a photo of {}."
DESCRIPTION = """\
Classify images: with a classifier (ViT, DINOv2) among its own classes, with a pair of towers (CLIP,
SigLIP) among --labels, without training (zero-shot).

stdout: for each image its best labels, one a line: the image, the score from 0 to 1 and the label,
with tabs between them. With --json one object an image, in the same order: image, labels (a list of
label, score and logit, best first). Everything else goes to stderr. Scores of a classifier and of
CLIP add up to 1 over all labels; SigLIP's are independent of one another.

exit code: 0, or 2 bad input, 1 out of memory, 130 Ctrl-C, 141 stdout was closed."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(prog=PROG, description=DESCRIPTION)
    parser.add_argument(
        "--labels", metavar="A,B,C", help="what a pair of towers tells apart, separated by commas"
    )
    parser.add_argument(
        "--template",
        metavar="TEXT",
        help=f"the text of a label, which takes the place of {{}} (default: {TEMPLATE!r})",
    )
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="labels an image (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object an image")
    add_image_options(parser)
    args = parser.parse_args(argv)
    if args.top < 1:
        parser.error(f"--top must be at least 1, got {args.top}")
    if args.template is not None and "{}" not in args.template:
        parser.error(f"--template must hold {{}}, where the label goes, got {args.template!r}")
    if args.template is not None and args.labels is None:
        parser.error("--template needs --labels")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    labels = None if args.labels is None else _split(args.labels)
    loaded = load_vision_model(args)
    if labels is None:
        names, score = _own_classes(loaded, args.model)
    else:
        names, score = _zero_shot(loaded, labels, args.template or TEMPLATE, args.model)
    for paths, images in batches(loaded, args.images, args.batch_size):
        scores, logits = score(images)
        for path, row, raw in zip(paths, scores, logits, strict=False):  # padding has no path
            _print(path, names, row, raw, args)
    say(f"{PROG}: {len(args.images)} images, {len(names)} labels")
    return 0


def _split(text: str) -> list[str]:
    """The labels of --labels; each of them has to say something, and something of its own."""
    labels = [label.strip() for label in text.split(",")]
    if not all(labels):
        raise ValueError(f"--labels must be texts with commas between them, got {text!r}")
    if len(set(labels)) < len(labels):
        raise ValueError(f"--labels must differ from one another, got {text!r}")
    return labels


def _own_classes(loaded: Any, model: str) -> tuple[list[str], Callable]:
    """The classifier's labels, and images -> (scores, logits), each f32 [images, labels]."""
    import jax

    if loaded.image_features is not None:
        raise ValueError(f"{model} tells apart what --labels names, and there are no --labels")
    if loaded.classify is None:
        raise ValueError(f"{model} has no classifier: it can be used with scripts.embed")
    classify = jax.jit(loaded.classify)

    def score(images):
        logits = classify(loaded.params, images)
        return jax.device_get((jax.nn.softmax(logits, axis=-1), logits))

    return list(loaded.config.labels), score


def _zero_shot(loaded: Any, labels: list[str], template: str, model: str) -> tuple:
    """As _own_classes, for labels in words."""
    import jax

    if loaded.image_features is None:
        raise ValueError(f"{model} has no text tower: it cannot tell apart what --labels names")
    if loaded.tokenize is None:
        raise ValueError(f"{model} has no tokenizer.json, which --labels needs")
    ids = loaded.tokenize([template.replace("{}", label) for label in labels])
    if len({row.tobytes() for row in ids}) < len(labels):
        raise ValueError(
            "--labels: several become the same tokens; a text is cut at "
            f"{ids.shape[1]} tokens, and --template {template!r} counts too"
        )
    texts = jax.jit(loaded.text_features)(loaded.params, ids)

    @jax.jit
    def compare(params, images, texts):
        logits = loaded.logits(params, loaded.image_features(params, images), texts)
        return loaded.scores(params, logits), logits

    return labels, lambda images: jax.device_get(compare(loaded.params, images, texts))


def _print(path: str, names: list[str], scores: Any, logits: Any, args) -> None:
    best = sorted(range(len(names)), key=lambda i: -scores[i])[: args.top]
    if args.json:
        found = [
            {"label": names[i], "score": float(scores[i]), "logit": float(logits[i])} for i in best
        ]
        print(json.dumps({"image": path, "labels": found}, ensure_ascii=False), flush=True)
        return
    for i in best:
        print(f"{path}\t{scores[i]:.4f}\t{names[i]}", flush=True)


if __name__ == "__main__":
    console.run(PROG, main)
