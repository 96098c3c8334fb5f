"""A plan as tables of text."""

from typing import Any

GIB, MIB = 2**30, 2**20
STEP = ("step", "rows", "GFLOP", "weights MB", "cache MB", "rest MB", "ICI MB", "compute ms")
STEP += ("HBM ms", "ICI ms", "bound by", "tokens/s", "compile s")


def plain(plan: dict[str, Any]) -> str:
    lines = [headline(plan), ""]
    lines += aligned([("memory of a device", "GiB"), *memory_rows(plan)])
    lines += ["", verdict(plan)]
    if plan["steps"]:
        lines += ["", *aligned([STEP, *map(step_row, plan["steps"])]), "", load(plan), ""]
        for step in plan["steps"]:
            lines += [f"{step['name']}: {text}" for text in collective_lines(step)]
    return "\n".join(lines) + "\n"


def headline(plan: dict[str, Any]) -> str:
    model, where = plan["model"], plan["topology"]
    whole = sorted({"heads", "columns", "vocabulary"} - set(plan["split"]))
    return (
        f"{model['name']}, {model['dtype']}, on {where['name']}: {where['devices']} devices, "
        f"data {where['data']} x model {where['model_parallel']}; "
        f"{model['kv_heads_stored']} kv heads stored"
        + (f"; not split over model: {', '.join(whole)}" if whole else "")
    )


def memory_rows(plan: dict[str, Any]) -> list[tuple[str, str]]:
    memory = plan["memory"]
    rows = [("available", memory["hbm"]), ("weights", memory["weights"])]
    rows += [("activations", memory["activations"]), ("code", memory["code"])]
    rows += [("cache", memory["pages"] * memory["page"])]
    return [(name, f"{size / GIB:.2f}") for name, size in rows]


def verdict(plan: dict[str, Any]) -> str:
    memory, engine = plan["memory"], plan["engine"]
    if not memory["fits"]:
        return "It does not fit."
    size, left = engine["page_size"], memory["pages_left"]
    wanted = engine["max_num_seqs"] // plan["topology"]["data"]
    everybody = f"{wanted} requests of {engine['max_model_len']} tokens"
    room = (
        f"{left} pages of {size} tokens are left for the cache of a replica: {left * size} tokens"
    )
    enough = memory["tokens"] >= wanted * engine["max_model_len"]
    return f"It fits. {room}, {'enough' if enough else 'not enough'} for {everybody}."


def load(plan: dict[str, Any]) -> str:
    return (
        f"Of one device; a decoding request holds {plan['engine']['context']} tokens. The rate is "
        "a bound: that of the longest of the three times, as if the others hid behind it."
    )


def step_row(step: dict[str, Any]) -> tuple[str, ...]:
    line = step["roofline"]
    megabytes = [f"{line[k] / 1e6:.1f}" for k in ("weights", "cache", "rest", "ici")]
    times = [f"{line[k] * 1e3:.3f}" for k in ("compute_seconds", "hbm_seconds", "ici_seconds")]
    return (
        step["name"],
        f"{line['rows']}",
        f"{line['flops'] / 1e9:.1f}",
        *megabytes,
        *times,
        line["bound"],
        f"{line['tokens_per_second']:.0f}",
        f"{step['compile_seconds']:.0f}",
    )


def collective_lines(step: dict[str, Any]) -> list[str]:
    """What a step moves between devices, small ones together."""
    large = [one for one in step["collectives"] if one["bytes"] >= 4096 and one["always"]]
    lines = [collective(one) for one in large]
    small = sum(one["count"] for one in step["collectives"] if one["always"]) - sum(
        one["count"] for one in large
    )
    if small:
        lines.append(f"{small} of less than 4 KB")
    drawn = [one for one in step["collectives"] if not one["always"]]
    if drawn:
        sent = sum(one["sent"] * one["count"] for one in drawn)
        lines.append(f"only where a request samples: {sent / 1e6:.1f} MB more")
    return lines or ["none"]


def collective(one: dict[str, Any]) -> str:
    shape = "x".join(map(str, one["shape"]))
    return f"{one['count']} {one['kind']} of {one['dtype']}[{shape}] over {one['devices']} devices"


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns of equal width, all but the first to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
