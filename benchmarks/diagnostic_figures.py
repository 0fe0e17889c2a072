"""The pictures of recorded verify steps and of answer quality."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nsd_sglang.benchmarks import drawing
from nsd_sglang.benchmarks.run_files import number

# More arms than this and the bars of one rank can no longer be told apart.
MOST_ARMS = 5
# Small differences of these would look large on an axis of their own.
FROM_ZERO = ("distinct_2", "tokens_per_answer", "passed")
OUTCOMES = ("accepted", "rescued", "rejected")


def diagnostics_picture(summary: dict, path: Path) -> Path | None:
    """Ranks of rejected tokens, acceptance by depth, E_S and R by depth, entropies: the panels whose figures are there."""
    arms = {name: arm for name, arm in list(summary["diagnostics"].items())[:MOST_ARMS]}
    panels: list[tuple[str, Callable[[Axes, dict, dict], None]]] = [
        ("rank_histogram", _ranks),
        ("acceptance_by_depth", _acceptance),
        ("e_s_by_depth", _errors),
        ("target_entropy", _entropies),
    ]
    panels = [(key, draw) for key, draw in panels if any(arm.get(key) for arm in arms.values())]
    if not panels:
        return None
    styles = drawing.arm_styles([(name, "nsd") for name in arms])

    def draw(figure: Figure) -> None:
        rows = (len(panels) + 1) // 2
        grid = figure.subplots(rows, 2 if len(panels) > 1 else 1, squeeze=False).ravel()
        for axes, (_, panel) in zip(grid, panels):
            panel(axes, arms, styles)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        handles = [Line2D([], [], **style, markersize=7) for style in styles.values()]
        drawing.legend_below(figure, handles, [drawing.label(name) for name in arms])

    return drawing.write(path, 10, 4.0 * ((len(panels) + 1) // 2) + 0.6, draw)


def quality_picture(summary: dict, path: Path) -> Path | None:
    """One panel a figure, one line an arm, with intervals over prompts."""
    panels = [
        ("quality", "logprob_per_token", "log-likelihood per token (nats)"),
        ("quality", "entropy_per_token", "target entropy per token (nats)"),
        ("quality", "distinct_2", "different token pairs of an answer (share)"),
        ("quality", "tokens_per_answer", "length (tokens per answer)"),
        ("humaneval", "passed", "HumanEval pass@1 (share)"),
    ]
    groups = summary["quality"]
    panels = [(suite, key, title) for suite, key, title in panels if any(g["suite"] == suite and key in g["figures"] for g in groups)]
    if not panels:
        return None
    arms = list(dict.fromkeys(group["arm"] for group in groups))
    styles = drawing.arm_styles([(g["arm"], g["kind"]) for g in [*summary["groups"], *groups]])

    def draw(figure: Figure) -> None:
        rows = (len(panels) + 1) // 2
        grid = figure.subplots(rows, 2 if len(panels) > 1 else 1, squeeze=False, sharey=True).ravel()
        for axes, (suite, key, title) in zip(grid, panels):
            for group in groups:
                if group["suite"] == suite and key in group["figures"]:
                    estimate = group["figures"][key]
                    drawing.point(axes, estimate["value"], arms.index(group["arm"]), styles[group["arm"]], xerr=drawing.bars(estimate))
            axes.set_xlabel(title)
            axes.set_yticks(range(len(arms)), [drawing.label(arm, 26) for arm in arms])
            axes.set_ylim(len(arms) - 0.5, -0.5)
            axes.margins(x=0.12)
            if key in FROM_ZERO:
                axes.set_xlim(0, 1.08 * axes.dataLim.x1 or 1)
            axes.xaxis.set_major_locator(MaxNLocator(5))
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        figure.suptitle("Answer quality (bars: 95 % interval over prompts)", fontsize=12, fontweight="bold", x=0.01, ha="left")

    return drawing.write(path, 10, (1.1 + 0.36 * len(arms)) * ((len(panels) + 1) // 2) + 0.5, draw)


def _numbers(values: object) -> list[float]:
    """A list of figures, NaN where one is missing; a dictionary by depth counts in its order."""
    values = list(values.values()) if isinstance(values, dict) else values if isinstance(values, list) else []
    return [float("nan") if number(value) is None else float(value) for value in values]


def _ranks(axes: Axes, arms: dict, styles: dict) -> None:
    width = 0.8 / len(arms)
    most = 0
    for position, (name, arm) in enumerate(arms.items()):
        counts = [0.0 if count != count else count for count in _numbers(arm.get("rank_histogram"))]
        total = sum(counts) or 1.0
        most = max(most, len(counts))
        offsets = [rank + 1 + (position - (len(arms) - 1) / 2) * width for rank in range(len(counts))]
        axes.bar(offsets, [count / total for count in counts], width, color=styles[name]["color"])
    ticks = [rank for rank in (1, 5, 10, 15) if rank < most - 2]
    axes.set_xticks([*ticks, most], [*map(str, ticks), f"≥{most}"])
    axes.set_xlabel("rank of the token under the target")
    axes.set_ylabel("share of rejected tokens")
    axes.set_title("Tokens that the standard test rejects")


def _acceptance(axes: Axes, arms: dict, styles: dict) -> None:
    _by_depth(axes, arms, styles, {"acceptance_by_depth": ("-", True), "sd_acceptance_by_depth": ("--", False)})
    axes.set_ylim(0, 1)
    axes.set_ylabel("probability")
    axes.set_title("Acceptance (dashed: standard test)")


def _errors(axes: Axes, arms: dict, styles: dict) -> None:
    _by_depth(axes, arms, styles, {"e_s_by_depth": ("-", True), "r_by_depth": ("--", False)})
    axes.set_ylim(bottom=0)
    axes.set_ylabel("probability")
    axes.set_title("$E_S$ by depth (dashed: $R$)", parse_math=True)


def _by_depth(axes: Axes, arms: dict, styles: dict, keys: dict[str, tuple[str, bool]]) -> None:
    for name, arm in arms.items():
        for key, (line, filled) in keys.items():
            values = _numbers(arm.get(key))
            axes.plot(
                range(1, len(values) + 1),
                values,
                line,
                color=styles[name]["color"],
                marker=styles[name]["marker"],
                markerfacecolor=styles[name]["color"] if filled else "white",
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("depth in the draft tree")


def _entropies(axes: Axes, arms: dict, styles: dict) -> None:
    """Filled: the target's entropy; open: the draft's."""
    for position, (name, arm) in enumerate(arms.items()):
        for key, filled in (("target_entropy", True), ("draft_entropy", False)):
            entropies = arm.get(key) if isinstance(arm.get(key), dict) else {}
            shift = (position - (len(arms) - 1) / 2) * 0.12 + (0 if filled else 0.03)
            points = [(x + shift, number(entropies.get(outcome))) for x, outcome in enumerate(OUTCOMES)]
            points = [(x, y) for x, y in points if y is not None]
            colour = styles[name]["color"]
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                styles[name]["marker"],
                color=colour,
                markerfacecolor=colour if filled else "white",
                markersize=8,
            )
    axes.set_xticks(range(len(OUTCOMES)), OUTCOMES)
    axes.set_xlim(-0.5, len(OUTCOMES) - 0.5)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("mean entropy (nats)")
    axes.set_title("Entropy (filled: target, open: draft)")
