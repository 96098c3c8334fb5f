"""docs/plan.md, made from the JSON of plans."""

from pathlib import Path
from typing import Any

from scripts.planning import table

FOLDER = "plans"  # beside the page: the JSON files
INTRODUCTION = """\
# Plans

What a model needs on a slice of TPU chips, told by the TPU compiler on a machine without a TPU:

```sh
python -m scripts.plan --model docs/configs/Llama-3.1-8B.json --topology v5e:2x2
```

It compiles the three steps that the engine runs, with the model's real sizes and sharding, for the
real chips: a *prefill* of one prompt, a *mixed* step of a prompt beside everybody's decodes, and a
*decode* of all requests. Weights are never read: a `config.json` is enough. Options say how many
devices share a replica and how large the engine is; `python -m scripts.plan --help` lists them.
This page is made by

```sh
{command}
```

of files that `--json` wrote.

## How to read it

- **Memory** is of one device (half a chip on v4 and TPU7x). *Available* is what the compiler lets a
  program take. *Activations* is the most that a step takes beside its arguments, *code* what all
  steps' programs take together. What is left is pages; the cache takes as many as the requests can
  use. Where a model has fewer kv heads than a replica has devices, each head is stored on several
  (*kv heads stored*).
- **Arithmetic** is what XLA counts of its program, and for the attention kernel
  4 x (query, key) pairs x heads x head dim, of what the mask keeps.
- **HBM** is read off the compiled program: what its instructions read from and write to HBM, buffer
  by buffer, what is fetched ahead into vector memory counted once. *Weights* are reads of
  parameters, *cache* the keys and values written and those that attention reads, each once a layer,
  *rest* activations and everything else. A kernel that reads keys again for each block of queries
  moves more.
- **ICI** is what a device sends for the collectives in the compiled program, over a ring. The
  bandwidth is that of a corner of the slice: one link along each axis, two where it is a ring.
- **Times** are bytes or operations over the chip's figures in
  [tpus.py](../scripts/planning/tpus.py), and a step's is the longest of the three, as if the others
  hid behind it. They are **bounds**: nobody has run these programs on a TPU, and no step is faster.
  Launch costs, waits, padding of matrices to the hardware's tiles, and what a kernel cannot overlap
  all come on top.
- **Compiling** took as long as it says on the machine that wrote the JSON, with whatever else ran
  there.
- **Collectives** are those XLA put in. This sharding needs sums (all-reduce) after the embedding
  and after attention and feed-forward of each layer; anything of the size of a weight, of keys or
  of the cache would be a fault.
"""


def page(plans: dict[Path, dict[str, Any]]) -> str:
    """The page. `plans`: JSON file -> what it holds."""
    files = " ".join(f"docs/{FOLDER}/{path.name}" for path in plans)
    command = f"python -m scripts.plan --report {files} > docs/plan.md"
    parts = [INTRODUCTION.format(command=command), "## Decoding at a glance", "", *_glance(plans)]
    for path, plan in plans.items():
        parts += ["", *_plan(path, plan)]
    return "\n".join(parts) + "\n"


def _glance(plans) -> list[str]:
    head = ("model", "chips", "weights GiB", "tokens held", "requests", "tokens each")
    head += ("ms a step", "bound by", "tokens/s")
    rows = []
    for plan in plans.values():
        decode = next((step for step in plan["steps"] if step["name"] == "decode"), None)
        memory, replicas = plan["memory"], plan["topology"]["data"]
        row = [plan["model"]["name"], plan["topology"]["name"]]
        row += [f"{memory['weights'] / table.GIB:.2f}"]
        if decode is None:
            rows.append([*row, "does not fit", *[""] * 5])
            continue
        line = decode["roofline"]
        row += [str(memory["pages_left"] * plan["engine"]["page_size"] * replicas)]
        row += [str(line["rows"] * replicas), str(plan["engine"]["context"])]
        row += [f"{line['seconds'] * 1e3:.2f}", line["bound"], f"{line['tokens_per_second']:.0f}"]
        rows.append(row)
    return markdown([head, *rows])


def _plan(path: Path, plan: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{package} {number}" for package, number in plan["versions"].items())
    lines = [
        f"## {plan['model']['name']} on {plan['topology']['name']}",
        "",
        f"{table.headline(plan)}. Compiled on {plan['date']} by {versions} "
        f"([JSON]({FOLDER}/{path.name})).",
        "",
        *markdown([("memory of a device", "GiB"), *table.memory_rows(plan)]),
        "",
        table.verdict(plan),
    ]
    if plan["steps"]:
        lines += ["", *markdown([table.STEP, *map(table.step_row, plan["steps"])])]
        lines += ["", table.load(plan), ""]
        for step in plan["steps"]:
            lines.append(f"- {step['name']}: {'; '.join(table.collective_lines(step))}.")
    return lines


def markdown(rows) -> list[str]:
    """A table, all columns but the first to the right."""
    cells = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|" + "|".join(["---"] + ["---:"] * (len(rows[0]) - 1)) + "|"
    return [cells[0], rule, *cells[1:]]
