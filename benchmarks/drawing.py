"""What all pictures share: colours that colour-blind readers can tell apart, markers, names, and how a picture is written."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402: the backend is chosen first
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

# Okabe and Ito's palette; plain decoding is grey and stock speculation blue in every picture.
GREY, BLACK = "#6b6b6b", "#000000"
STOCK = ("#0072B2", "#56B4E9", "#004266")
OTHERS = ("#D55E00", "#E69F00", "#009E73", "#CC79A7", "#7A4A00", BLACK, "#5E3C99", "#B2182B")
# Never told apart by colour alone.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
DPI = 120
STYLE = {
    "figure.dpi": DPI,
    "font.size": 11,
    "axes.grid": True,
    "axes.grid.axis": "both",
    "grid.color": "#e3e3e3",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "text.parse_math": False,  # a dollar sign in an arm's name is a dollar sign
    "figure.constrained_layout.use": True,
}


def label(name: object, width: int = 34) -> str:
    """A name as a picture can show it: one line, not too long, and not hidden by a leading underscore."""
    text = re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in str(name))).strip() or "?"
    text = text if len(text) <= width else text[: width - 1] + "…"
    return " " + text if text.startswith("_") else text


def arm_styles(arms: list[tuple[str, str | None]]) -> dict[str, dict]:
    """Colour, marker and line of each (name, kind), the same in every picture of a run."""
    styles: dict[str, dict] = {}
    stock = others = 0
    for number, (name, kind) in enumerate(arms):
        if name in styles:
            continue
        if kind == "plain":
            colour = GREY
        elif kind == "stock":
            colour, stock = STOCK[stock % len(STOCK)], stock + 1
        else:
            colour, others = OTHERS[others % len(OTHERS)], others + 1
        styles[name] = {
            "color": colour,
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": LINES[number // len(MARKERS) % len(LINES)],
        }
    return styles


def bars(estimate: dict) -> list[list[float]] | None:
    """Interval ends as matplotlib wants them: distances below and above the value."""
    if estimate.get("low") is None or estimate.get("high") is None:
        return None
    value = estimate["value"]
    return [[max(value - estimate["low"], 0.0)], [max(estimate["high"] - value, 0.0)]]


def point(axes: Axes, x: float, y: float, style: dict, *, xerr: list | None = None, yerr: list | None = None) -> None:
    """One measured point with its interval."""
    axes.errorbar(
        [x], [y], xerr=xerr, yerr=yerr, fmt=style["marker"], color=style["color"], markersize=7, capsize=3, elinewidth=1.4, zorder=3
    )


def legend_below(figure: Figure, handles: list, names: list[str], columns: int = 3) -> None:
    figure.legend(handles, names, loc="outside lower center", ncols=min(columns, len(names)))


def write(path: Path, width: float, height: float, draw: Callable[[Figure], None]) -> Path:
    """Draw a picture of ``width`` by ``height`` inches and write it whole or not at all."""
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a name in a script that the font lacks
        figure = plt.figure(figsize=(width, height))
        try:
            draw(figure)
            partial = path.with_name(path.name + ".partial")
            figure.savefig(partial, format="png", metadata={"Software": None})
            partial.replace(path)
        finally:
            plt.close(figure)
    return path
