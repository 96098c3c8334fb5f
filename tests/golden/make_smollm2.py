"""Make smollm2.json: greedy ids of SmolLM2 as `transformers` computes them in float32 from the
GGUF.

Run in an environment with torch, transformers and gguf (neither is needed by the project):

    python tests/golden/make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf

The end-of-text rule is off, so that each record has all 64 ids: a program that stops at
`<|im_end|>` (id 2) has to agree up to that id. `margin` is the smallest distance between the best
and the second
logit over the 64 steps: far above the rounding of a float32 forward, or the record would be a coin
toss.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

NEW_TOKENS = 64
HERE = Path(__file__).parent

LONG = (
    "The lighthouse at the end of the bay had been dark for eleven years when Marta was asked"
    " to look after it. Nobody in the village remembered exactly why the lamp had been "
    "switched off. Some said the new harbour had made it useless; others, that the last "
    "keeper had simply walked away one night and taken the key with him. Marta did not "
    "believe either story. On her first morning she climbed the hundred and forty steps with "
    "a bucket, a lantern and a notebook, and she wrote down everything she saw: three broken "
    "panes on the north side, a nest of swallows above the door, a brass plate with the name "
    "of a company that no longer existed, and a row of pencil marks on the wall, one for each"
    " ship that had passed in the winter of 1962. She counted them twice. There were four "
    "hundred and nine. In the afternoon the wind turned, and the sea began to beat against "
    "the rocks so hard that the whole tower seemed to hum. She found the machinery under a "
    "sheet of canvas, heavy with grease, and beside it a tin box with a letter inside. The "
    "letter was addressed to whoever came next. It began by saying that the light must never "
    "be lit on the last day of October, and it went on, for two pages, to explain what had "
    "happened the one time that somebody had forgotten. Marta read it slowly, by the window, "
    "until the daylight was gone. Then she folded it, put it back into the box, and looked at"
    " the calendar. It was"
)

CODE = '''def binary_search(items, target):
    """Return the index of target in the sorted list items, or -1."""
    low, high = 0, len(items) - 1
    while low <= high:
'''

PROMPTS = {  # name -> text, or a list of chat turns
    "capital": "The capital of France is",
    "one_word": "Once",
    "one_letter": "I",
    "long": LONG,
    "code_python": CODE,
    "code_c": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "json": '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "html": "<!DOCTYPE html>\n<html>\n  <head>\n    <title>",
    "digits": "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    "long_number": "3.14159265358979323846264338327950288419716939937510",
    "sum": "12345 + 67890 =",
    "french": "Bonjour, je m'appelle Zoé et j'habite à",
    "german": "Die Größe des Gebäudes beträgt",
    "russian": "Москва является столицей",
    "chinese": "中国的首都是",
    "japanese": "日本の首都は",
    "arabic": "عاصمة مصر هي",
    "emoji": "I love pizza 🍕 and my cat 🐱",
    "emoji_joined": "👩‍👩‍👧‍👦 is a family, 🏳️‍🌈 is a flag, and",
    "spaces": "   ",
    "newlines": "\n\n",
    "tab": "name\tage\tcity\nAda\t36\tLondon\nAlan\t",
    "capitals": "BREAKING NEWS: SCIENTISTS HAVE DISCOVERED",
    "markdown": "# Shopping list\n\n- apples\n- bread\n-",
    "dialogue": '"Where are you going?" she asked.\n\n"To the',
    "chat_capital": [{"role": "user", "content": "What is the capital of France?"}],
    "chat_haiku": [{"role": "user", "content": "Write a haiku about the sea."}],
    "chat_turns": [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Who wrote Hamlet?"},
        {"role": "assistant", "content": "William Shakespeare wrote Hamlet."},
        {"role": "user", "content": "When was he born?"},
    ],
    "chat_code": [{"role": "user", "content": "Write a Python function that reverses a string."}],
}


def record(model, tokenizer, name, prompt):
    """One golden: the prompt as text or chat turns, its ids, 64 greedy ids and the smallest
    margin."""
    chat = isinstance(prompt, list)
    text = (
        tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        if chat
        else prompt
    )
    ids = tokenizer(text, add_special_tokens=not chat, return_tensors="pt").input_ids
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(out.logits)[:, 0].topk(2).values
    margin = (best[:, 0] - best[:, 1]).min().item()
    new = out.sequences[0, ids.shape[1] :].tolist()
    assert len(new) == NEW_TOKENS
    print(
        f"{name:14} {ids.shape[1]:4} ids, margin {margin:.5f}: {tokenizer.decode(new)!r}",
        file=sys.stderr,
    )
    return {
        "name": name,
        "prompt": prompt,
        "text": text,
        "prompt_ids": ids[0].tolist(),
        "ids": new,
        "first_logits": [
            [int(i), round(float(v), 4)] for v, i in zip(*out.logits[0][0].topk(5), strict=True)
        ],
        "margin": round(margin, 6),
    }


def main(path):
    """Write smollm2.json beside this file, one record a line."""
    folder, name = Path(path).parent, Path(path).name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32
    )
    model.eval().generation_config.eos_token_id = None
    with torch.no_grad():
        records = [record(model, tokenizer, *item) for item in PROMPTS.items()]
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}, float32, CPU"
    lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in records)
    head = f'"made_with": {json.dumps(made_with)}, "file": {json.dumps(name)}'
    (HERE / "smollm2.json").write_text(f'{{{head}, "records": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
