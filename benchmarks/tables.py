"""Lay the figures of a summary out as tables; a cell carries the place of its figure in `summary.json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nsd_sglang.benchmarks.report_metrics import BY_KEY, METRICS, RATIO_KEYS
from nsd_sglang.benchmarks.run_files import number

NOTHING = "–"
# What plain decoding and stock speculation show where they have no figure to report.
EXACT = {"deviation_per_token": "exact", "rescued_per_token": "none"}
UNITS = {
    "logprob_per_token": "nats",
    "entropy_per_token": "nats",
    "outside_per_token": "share of tokens",
    "stopped": "share",
    "passed": "share",
    "deviation_per_token": "total variation",
    "rescued_per_token": "share of tokens",
}
# The ratios of the percentiles are in the summary only.
RATIOS_SHOWN = tuple(key for key in RATIO_KEYS if key != "output_throughput" and not key.endswith((".p50", ".p99")))


@dataclass(frozen=True)
class Cell:
    """``pointer``: JSON pointer (RFC 6901) of the figure in the summary; empty for text."""

    text: str
    interval: str = ""
    pointer: str = ""


@dataclass
class Table:
    """``rows``: the row's title, its unit, its cells."""

    title: str
    columns: list[str]
    rows: list[tuple[str, str, list[Cell]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    corner: str = ""


def show(value: object) -> str:
    """A figure with three or four significant digits, thousands separated from 1,000 on; a dash where there is none."""
    figure = number(value)
    if figure is None:
        return str(value) if isinstance(value, str) else NOTHING
    if isinstance(value, int) or figure == 0 or abs(figure) >= 1000:
        return f"{figure:,.0f}"
    if abs(figure) < 0.001:
        return f"{figure:.2e}"
    decimals = 3 if abs(figure) < 10 else 2 if abs(figure) < 100 else 1
    return f"{figure:.{decimals + (abs(figure) < 0.1)}f}"


def interval(figure: dict) -> str:
    """``low to high``, or nothing without an interval."""
    low, high = figure.get("low"), figure.get("high")
    return "" if low is None or high is None else f"{show(low)} to {show(high)}"


def pointer(*steps: object) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def at(summary: dict, *steps: object, ratio: bool = False) -> Cell:
    """The figure at ``steps`` of the summary: a number, or an estimate with its interval."""
    node: object = summary
    for step in steps:
        try:
            node = node[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return Cell(NOTHING)
    times = "×" if ratio else ""
    if isinstance(node, dict):
        return Cell(show(node.get("value")) + times, interval(node), pointer(*steps))
    return Cell(show(node) + times, "", pointer(*steps)) if node is not None else Cell(NOTHING)


def headline(summary: dict) -> Table | None:
    """One row a concurrency: plain, stock and NSD, their ratios, and what the answers reported."""
    lead = summary["headline"]
    if not lead:
        return None
    names = {kind: lead[kind] for kind in ("plain", "stock", "nsd")}
    columns = [f"{name}, tokens/s" for name in names.values() if name]
    columns += [f"NSD / {kind}" for kind in ("stock", "plain") if names[kind]] + ["deviation per token"]
    table = Table("Output tokens per second", columns, corner="concurrency")
    for concurrency in lead["concurrencies"]:
        places = {kind: _place(summary, "comparison", name, concurrency) for kind, name in names.items() if name}
        nsd = places["nsd"]
        cells = [at(summary, "groups", place, "figures", "output_throughput") for place in places.values()]
        for kind in ("stock", "plain"):
            if names[kind]:
                cells.append(at(summary, "groups", nsd, "ratios", kind, "figures", "output_throughput", ratio=True))
        cells.append(at(summary, "groups", nsd, "figures", "deviation_per_token"))
        table.rows.append((str(concurrency), "", cells))
    return table


def suite_tables(summary: dict, suite: str) -> list[Table]:
    """All figures of a suite: one table a concurrency, one column an arm; then the ratios of all figures likewise."""
    tables = []
    for concurrency in _concurrencies(summary, suite):
        places = [i for i, g in enumerate(summary["groups"]) if (g["suite"], g["concurrency"]) == (suite, concurrency)]
        groups = [summary["groups"][place] for place in places]
        figures = Table(f"Concurrency {concurrency}", [group["arm"] for group in groups], corner="figure")
        for metric in METRICS:
            if any(metric.key in group["figures"] for group in groups):
                cells = [_figure_cell(summary, place, metric.key) for place in places]
                figures.rows.append((metric.title, metric.unit, cells))
        figures.rows[1:1] = _ratio_rows(summary, places, ("output_throughput",))
        figures.rows.append(("repeats", "", [Cell(str(len(group["repeats"]))) for group in groups]))
        figures.notes = _reference_notes(groups, suite)
        ratios = Table(f"Concurrency {concurrency}: ratios of the other figures", figures.columns, corner="ratio")
        ratios.rows = _ratio_rows(summary, places, RATIOS_SHOWN)
        tables += [figures] + ([ratios] if ratios.rows else [])
    return tables


def line_table(summary: dict, suite: str, keys: Iterable[str]) -> list[Table]:
    """A suite with many arms: one table a concurrency, one row an arm."""
    tables = []
    for concurrency in _concurrencies(summary, suite):
        table = Table(f"Concurrency {concurrency}", [], corner="arm")
        wanted = list(keys)
        table.columns = [BY_KEY[key].title for key in wanted]
        table.columns[1:1] = ["tokens/s / plain", "tokens/s / stock"]
        groups = []
        for place, group in enumerate(summary["groups"]):
            if (group["suite"], group["concurrency"]) == (suite, concurrency):
                groups.append(group)
                cells = [_figure_cell(summary, place, key) for key in wanted]
                cells[1:1] = [_ratio_cell(summary, place, kind, "output_throughput") for kind in ("plain", "stock")]
                table.rows.append((group["arm"], _shape(group), cells))
        table.notes = _reference_notes(groups, suite)
        empty = [i for i in range(len(wanted) + 2) if all(cells[i].text == NOTHING for _, _, cells in table.rows)]
        for i in reversed(empty):
            for column in (table.columns, *(cells for _, _, cells in table.rows)):
                del column[i]
        tables.append(table)
    return tables


def quality_table(summary: dict, suite: str, rows: dict[str, str]) -> Table | None:
    """One column an arm; ``rows`` names the figures and their titles. The difference to plain decoding follows its figure."""
    places = [i for i, group in enumerate(summary["quality"]) if group["suite"] == suite]
    if not places:
        return None
    groups = [summary["quality"][place] for place in places]
    table = Table("", [group["arm"] for group in groups], corner="figure")
    for key, title in rows.items():
        for label, steps in ((title, ("figures", key)), (f"{title}, less plain", ("differences", "plain", "figures", key))):
            cells = [at(summary, "quality", place, *steps) for place in places]
            if any(cell.pointer for cell in cells):
                table.rows.append((label, UNITS.get(key, ""), cells))
    for name in ("prompts", "answers"):
        table.rows.append((name, "", [Cell(show(group[name])) for group in groups]))
    return table


def _figure_cell(summary: dict, place: int, key: str) -> Cell:
    exact = summary["groups"][place]["kind"] in ("plain", "stock")
    cell = at(summary, "groups", place, "figures", key)
    return Cell(EXACT[key]) if exact and key in EXACT and not cell.pointer else cell


def _ratio_cell(summary: dict, place: int, kind: str, key: str) -> Cell:
    return at(summary, "groups", place, "ratios", kind, "figures", key, ratio=True)


def _ratio_rows(summary: dict, places: list[int], keys: Iterable[str]) -> list[tuple[str, str, list[Cell]]]:
    rows = []
    for key in keys:
        for kind in ("plain", "stock"):
            cells = [_ratio_cell(summary, place, kind, key) for place in places]
            if any(cell.pointer for cell in cells):
                rows.append((f"{BY_KEY[key].title} / {kind}", "", cells))
    return rows


def _reference_notes(groups: list[dict], suite: str) -> list[str]:
    """Which arm the ratios divide by, where that is not plain from the table itself."""
    notes = []
    for kind in ("plain", "stock"):
        used: dict[tuple[str, str], list[dict]] = {}
        for group in groups:
            if kind in group["ratios"]:
                other = group["ratios"][kind]
                used.setdefault((other["arm"], other["suite"]), []).append(group)
        for (arm, where), users in used.items():
            if kind == "plain" and where == suite and len(used) == 1:
                continue
            text = f"“/ {kind}” divides by {arm}"
            text += f" of the {where} suite, whose mean was measured at another time: no interval" if where != suite else ""
            text += f", for {', '.join(user['arm'] for user in users)}" if len(used) > 1 else ""
            notes.append(text + ".")
        partial: dict[int, list[str]] = {}
        for group in groups:
            ratio = group["ratios"].get(kind)
            if ratio and ratio["suite"] == suite and ratio["repeats"] != group["repeats"]:
                partial.setdefault(len(ratio["repeats"]), []).append(group["arm"])
        notes += [f"{', '.join(names)} / {kind}: over the {count} repeat{'s' * (count != 1)} that both have." for count, names in partial.items()]
    return notes


def _shape(group: dict) -> str:
    parts = [f"theta {group['threshold']:g}"] if number(group["threshold"]) is not None else []
    parts += [str(group["gate"])] if group["gate"] not in (None, "nucleus") else []
    steps, topk, nodes = group["num_steps"], group["topk"], group["num_draft_tokens"]
    parts += [f"{steps} steps, top-{topk}, {nodes} nodes"] if steps is not None else []
    return ", ".join(parts + ([str(group["proposals"])] if group["proposals"] else []))


def _concurrencies(summary: dict, suite: str) -> list[int]:
    return sorted({group["concurrency"] for group in summary["groups"] if group["suite"] == suite})


def _place(summary: dict, suite: str, arm: str, concurrency: int) -> int | None:
    wanted = (suite, arm, concurrency)
    return next((i for i, g in enumerate(summary["groups"]) if (g["suite"], g["arm"], g["concurrency"]) == wanted), None)
