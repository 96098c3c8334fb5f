"""The tiny vision models of golden/vision.py as directories, with vocabularies for their texts."""

import io
import json
import string

import jax
import models_support as support
import sentencepiece
import tokenizers
import vision as tiny
from safetensors.numpy import save_file

__all__ = ["SHAPES", "jitted", "tiny", "write", "write_clip_tokenizer", "write_pieces"]

SHAPES = json.loads((support.GOLDEN / "vision_shapes.json").read_text())


def jitted(function):
    return jax.jit(function, compiler_options=support.HURRY)


def write(folder, name, **changes):
    """A Hugging Face directory of the tiny model `name`; changes: of its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny.MODELS[name] | changes))
    save_file(tiny.weights(name, SHAPES[name]), folder / "model.safetensors")
    return folder


def write_clip_tokenizer(folder, eos=5):
    """tokenizer.json with a token a letter: <s> is 1, letters are 6 to 31, the end token is 5."""
    vocab = {"<pad>": 0, "<s>": 1, "?": 2, " ": 3, ".": 4, "</s>": eos}
    vocab |= {letter: 6 + i for i, letter in enumerate(string.ascii_lowercase)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="?"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", eos)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_pieces(folder):
    """spiece.model as SigLIP's: unk 2, end 1, no bos; letters and little else."""
    model, texts = io.BytesIO(), ["a photo of a cat", "the dog ran by", "xyz jukebox quiz lamps"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 10),
        model_writer=model,
        vocab_size=29,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (folder / "spiece.model").write_bytes(model.getvalue())
    return folder
