"""The transformers side of compare_transformers: runs under its own interpreter, which has torch.

It imports nothing of this project. Requests and answers are JSON objects, one a line: a request is
{"prompts": [[id, ...], ...], "new_tokens": n}; the answer has the greedy ids of each prompt, and
the tokens and seconds of their decoding, each prompt alone, after its prefill and first token.
"""

import inspect
import json
import sys
import time
from pathlib import Path

import torch
import transformers


def decode(model, prompt, new_tokens):
    """(greedy ids, seconds of all but the first): a plain loop, which is faster than generate()."""
    # The argument has another name in newer versions of transformers.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache = {name: transformers.DynamicCache(config=model.config)}
    ids = [int(model(torch.tensor([prompt]), use_cache=True, **cache).logits[0, -1].argmax())]
    start = time.perf_counter()
    while len(ids) < new_tokens:
        logits = model(torch.tensor([ids[-1:]]), use_cache=True, **cache).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids, time.perf_counter() - start


def main(path):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    print(json.dumps({"versions": versions, "threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        with torch.inference_mode():
            done = [decode(model, p, request["new_tokens"]) for p in request["prompts"]]
        answer = {
            "ids": [ids for ids, _ in done],
            "tokens": sum(len(ids) - 1 for ids, _ in done),
            "seconds": sum(seconds for _, seconds in done),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
