"""The pictures of speed: throughput against concurrency, accepted length, and the Pareto picture."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nsd_sglang.benchmarks import drawing
from nsd_sglang.benchmarks.diagnostic_figures import diagnostics_picture, quality_picture

# A range of tokens/s past this factor is drawn on a log scale: below it differences between arms read better on a linear one.
LOG_FROM = 8


def draw_all(summary: dict, directory: Path) -> list[Path]:
    """Write each picture whose suite has figures, and remove one of an earlier build whose suite has none."""
    written = []
    for name, picture in PICTURES.items():
        path = picture(summary, directory / name)
        if path is None:
            (directory / name).unlink(missing_ok=True)
        else:
            written.append(path)
    return written


def throughput_picture(summary: dict, path: Path) -> Path | None:
    groups = _with(summary, "comparison", "output_throughput")
    if not groups:
        return None
    styles = _styles(summary)
    concurrencies = sorted({group["concurrency"] for group in groups})
    arms = list(dict.fromkeys(group["arm"] for group in groups))

    panels = [("output tokens/s", groups, lambda group: group["figures"]["output_throughput"])]
    faster = [group for group in groups if _speed_up(group)]
    panels += [("speed-up over plain decoding", faster, _speed_up)] if faster else []

    def draw(figure: Figure) -> None:
        for axes, (title, members, figure_of) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
            for number, arm in enumerate(arms):
                # Beside each other, or the intervals of arms of equal speed would hide one another.
                shift = (number - (len(arms) - 1) / 2) * min(0.08, 0.6 / len(arms))
                mine = [(concurrencies.index(g["concurrency"]) + shift, figure_of(g)) for g in members if g["arm"] == arm]
                style = styles[arm]
                axes.plot([x for x, _ in mine], [e["value"] for _, e in mine], style["linestyle"], color=style["color"], linewidth=1.4)
                for x, estimate in mine:
                    drawing.point(axes, x, estimate["value"], style, yerr=drawing.bars(estimate))
            axes.set_xticks(range(len(concurrencies)), [str(c) for c in concurrencies])
            axes.set_xlim(-0.5, len(concurrencies) - 0.5)
            axes.set_xlabel("concurrency (requests at a time)")
            axes.set_title(title)
        _throughput_scale(figure.axes[0], [group["figures"]["output_throughput"]["value"] for group in groups])
        for axes in figure.axes[1:]:
            axes.axhline(1, color=drawing.GREY, linewidth=1.2, linestyle="--")
        figure.suptitle(_interval_note(groups, "output_throughput"), fontsize=10, color=drawing.GREY, x=0.01, ha="left")
        drawing.legend_below(figure, [Line2D([], [], **styles[arm], markersize=7) for arm in arms], [drawing.label(arm) for arm in arms])

    return drawing.write(path, 5 * len(panels) if len(panels) > 1 else 7, 5.2, draw)


def _interval_note(groups: list[dict], key: str) -> str:
    some = any(group["figures"][key]["low"] is not None for group in groups)
    return "bars: 95 % interval over repeats" if some else "one repeat, no intervals"


def _throughput_scale(axes: Axes, values: list[float]) -> None:
    if min(values) > 0 and max(values) / min(values) > LOG_FROM:
        axes.set_yscale("log", subs=(2, 3, 5))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)


def accepted_length_picture(summary: dict, path: Path) -> Path | None:
    groups = [g for g in _with(summary, "comparison", "accept_length") if g["kind"] != "plain"]
    if not groups:
        return None
    arms = list(dict.fromkeys(group["arm"] for group in groups))
    concurrencies = sorted({group["concurrency"] for group in groups})

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        styles = [{"color": colour, "marker": marker} for colour, marker in zip((*drawing.STOCK[:1], *drawing.OTHERS), drawing.MARKERS)]
        handles = []
        for number, concurrency in enumerate(concurrencies):
            style = styles[number % len(styles)]
            shift = (number - (len(concurrencies) - 1) / 2) * min(0.22, 0.6 / len(concurrencies))
            for group in groups:
                if group["concurrency"] == concurrency:
                    estimate = group["figures"]["accept_length"]
                    drawing.point(axes, estimate["value"], arms.index(group["arm"]) + shift, style, xerr=drawing.bars(estimate))
            handles.append(Line2D([], [], **style, linestyle="", markersize=7))
        axes.axvline(1, color=drawing.GREY, linewidth=1.2, linestyle="--")
        axes.annotate("plain decoding", (1, 1), xycoords=("data", "axes fraction"), xytext=(4, -12), textcoords="offset points", color=drawing.GREY, fontsize=9)
        axes.set_yticks(range(len(arms)), [drawing.label(arm) for arm in arms])
        axes.set_ylim(len(arms) - 0.5, -0.8)
        axes.set_xlim(left=0.9)
        axes.set_xlabel("decoded tokens per verify call, the target's own token included")
        axes.set_title(f"Accepted length ({_interval_note(groups, 'accept_length')})")
        drawing.legend_below(figure, handles, [f"concurrency {c}" for c in concurrencies])

    return drawing.write(path, 8.5, 1.9 + 0.5 * len(arms), draw)


def pareto_picture(summary: dict, path: Path) -> Path | None:
    """Speed-up over plain decoding against the deviation that the answers reported; the rival rules in a panel of their own."""
    speed = _with(summary, "ablation") or _with(summary, "comparison")
    panels = [("NSD: threshold and draft tree", _points(speed)), ("Rival rules", _points(_with(summary, "rules")))]
    panels = [(title, points) for title, points in panels if any(point["x"] > 0 for point in points)]
    if not panels:
        return None
    styles = _styles(summary)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (title, points) in zip(grid, panels):
            _pareto_panel(axes, points, styles, by_rule=title == "Rival rules")
            axes.set_title(title)

    return drawing.write(path, 8.5, 6 * len(panels), draw)


def _pareto_panel(axes: Axes, points: list[dict], styles: dict[str, dict], *, by_rule: bool) -> None:
    """One line through the thresholds of a tree (with the same proposals, at one concurrency), each point named by its threshold;
    for rival rules one point a rule, named in the legend."""
    series: dict[str, list[dict]] = {}
    concurrencies = {point["group"]["concurrency"] for point in points}
    for point in points:
        suffix = f", concurrency {point['group']['concurrency']}" if len(concurrencies) > 1 else ""
        series.setdefault((point["group"]["arm"] if by_rule else _tree_name(point["group"])) + suffix, []).append(point)
    own = drawing.arm_styles([(name, members[0]["group"]["kind"]) for name, members in series.items()])
    handles = []
    for name, members in series.items():
        style = styles.get(members[0]["group"]["arm"], own[name]) if by_rule and len(concurrencies) == 1 else own[name]
        members.sort(key=lambda point: point["x"])
        axes.plot([p["x"] for p in members], [p["y"] for p in members], color=style["color"], linewidth=1.2, alpha=0.7)
        for p in members:
            drawing.point(axes, p["x"], p["y"], style, xerr=drawing.bars(p["deviation"]), yerr=drawing.bars(p["speed"]))
            threshold = p["group"]["threshold"]
            if threshold is not None and not by_rule:
                axes.annotate(f"{threshold:g}", (p["x"], p["y"]), xytext=(7, -13), textcoords="offset points", fontsize=9, color=style["color"])
        handles.append(Line2D([], [], color=style["color"], marker=style["marker"], linewidth=1.2, markersize=7))
    best = [max((p for p in points if p["x"] == x), key=lambda p: p["y"]) for x in sorted({p["x"] for p in points})]
    front = [p for number, p in enumerate(best) if all(p["y"] > other["y"] for other in best[:number])]
    axes.step([p["x"] for p in front], [p["y"] for p in front], where="post", color="#c9ced6", linewidth=7, alpha=0.6, zorder=1)
    handles.append(Line2D([], [], color="#c9ced6", linewidth=7, alpha=0.6))
    axes.axhline(1, color=drawing.GREY, linewidth=1.2, linestyle="--")
    axes.set_xlabel("deviation per token that the answers reported (bound on total variation; 0 is exact)")
    axes.set_ylabel("speed-up over plain decoding\n(ratio of output tokens/s)")
    widest = max(p["x"] for p in points)
    axes.set_xlim(-0.03 * widest, 1.12 * widest)
    names = [drawing.label(name, 44) for name in series] + ["nothing measured is faster and closer"]
    axes.legend(handles, names, loc="upper left", bbox_to_anchor=(0, -0.13), ncols=2, fontsize=9)


def _points(groups: list[dict]) -> list[dict]:
    """Groups with a speed-up and a deviation; stock speculation deviates by nothing."""
    exact = {"value": 0.0, "low": None, "high": None}
    points = []
    for group in groups:
        speed = _speed_up(group)
        deviation = exact if group["kind"] == "stock" else group["figures"].get("deviation_per_token")
        if speed and deviation:
            points.append({"x": deviation["value"], "y": speed["value"], "deviation": deviation, "speed": speed, "group": group})
    return points


def _speed_up(group: dict) -> dict | None:
    return group["ratios"].get("plain", {}).get("figures", {}).get("output_throughput")


def _tree_name(group: dict) -> str:
    """Which line a point of the ablation belongs to; stock speculation stands at the exact end of its tree's line."""
    steps, topk, nodes = group["num_steps"], group["topk"], group["num_draft_tokens"]
    shape = group["arm"] if steps is None else f"{steps} steps, top-{topk}, {nodes} nodes"
    if group["kind"] == "stock":
        return f"stock, {shape}"
    return shape + (f", {group['proposals']} proposals" if group["proposals"] not in (None, "topk") else "")


def _with(summary: dict, suite: str, figure: str | None = None) -> list[dict]:
    return [g for g in summary["groups"] if g["suite"] == suite and (figure is None or figure in g["figures"])]


def _styles(summary: dict) -> dict[str, dict]:
    return drawing.arm_styles([(group["arm"], group["kind"]) for group in summary["groups"]])


PICTURES = {
    "throughput.png": throughput_picture,
    "accepted_length.png": accepted_length_picture,
    "pareto.png": pareto_picture,
    "diagnostics.png": diagnostics_picture,
    "quality.png": quality_picture,
}
