"""Figures of a run: for each suite, the share of the roofline that every implementation reached."""

from pathlib import Path

from scripts.bench.page import figure_name
from scripts.bench.targets import OURS, best

BAR = 0.2  # inches
WIDTH = 7.5
OUR_COLOR = "#c1272d"


def absent() -> str | None:
    """Why no figure can be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        return f"{error}: pip install 'jaxattn[bench]'"
    return None


def draw(document: dict, stem: str, folder: Path) -> list[Path]:
    """Write `<stem>-<suite>.svg` into ``folder``; returns the files."""
    import matplotlib

    # The same run gives the same bytes, and text stays text.
    matplotlib.use("agg")
    settings = {"svg.hashsalt": "jaxattn", "svg.fonttype": "none", "font.size": 9}
    folder.mkdir(parents=True, exist_ok=True)
    cases = {case["name"]: case for case in document["cases"]}
    written = []
    with matplotlib.rc_context(settings):
        for suite, names in document["suites"].items():
            shown = [cases[name] for name in names if name in cases]
            if shown:
                path = folder / figure_name(stem, suite)
                _suite(shown, f"{suite}, {document['device']}", path)
                written.append(path)
    return written


def _suite(cases: list[dict], title: str, path: Path) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    bars = [_bars(case) for case in cases]
    peers = dict.fromkeys(name for case in bars for name in case if name != OURS)
    palette = colormaps["tab20"].colors
    colors = {OURS: OUR_COLOR} | {name: palette[i % 20] for i, name in enumerate(peers)}
    height = sum(len(case) + 1 for case in bars) * BAR
    figure = Figure(figsize=(WIDTH, height + 1.2), layout="constrained")
    axes = figure.add_subplot()
    y, ticks = 0.0, []
    for case in bars:
        ticks.append(y + (len(case) - 1) / 2)
        for name, share in case.items():
            label = name if name in colors else None
            axes.barh(y, share, height=0.85, color=colors[name], label=label)
            axes.text(share, y, f" {share:.0f}", va="center", fontsize=7)
            y += 1
        y += 1
    axes.set_yticks(ticks, [case["name"] for case in cases])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("% of the roofline measured in the same run")
    axes.set_title(title)
    handles, labels = axes.get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    if legend:
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=4)
    figure.savefig(path, metadata={"Date": None})


def _bars(case: dict) -> dict[str, float]:
    """Percent of the roofline, by implementation; those that failed have none."""
    names = dict.fromkeys(row["implementation"] for row in case["results"])
    rows = {name: best(case, name) for name in names}
    return {
        name: 100 * case["roofline_seconds"] / row["seconds"] for name, row in rows.items() if row
    }
