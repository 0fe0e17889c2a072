"""Aggregate a run directory: one group per suite, arm and concurrency, with intervals over repeats and ratios.

`summary.json` holds everything that the report shows; the report computes no figure of its own.
"""

from __future__ import annotations

from nsd_sglang.benchmarks import stats
from nsd_sglang.benchmarks.report_metrics import METRICS, RATIO_KEYS, Metric
from nsd_sglang.benchmarks.quality_summary import quality_groups
from nsd_sglang.benchmarks.run_files import RunFiles, number

SCHEMA = 1
# The paper's default; the arm nearest to it leads the report, whatever its result.
HEADLINE_THRESHOLD = 0.95
SUITES = ("comparison", "ablation", "rules")


def summarise(files: RunFiles) -> dict:
    """Everything that `summary.json` holds.

    Returns:
        A JSON object. ``groups``: suite, arm, its kind, threshold and tree, concurrency, repeats, ``figures`` by metric key
        (``value``, ``low``, ``high``, ``count``, ``per_repeat``) and ``ratios`` to ``plain`` and ``stock`` (``arm``, ``suite``,
        ``repeats``, ``figures``). ``headline`` names the arms that lead the report. ``quality`` and ``diagnostics``: by arm.
    """
    seed = int(number(files.run.get("seed")) or 0)
    arms = files.arms
    groups = _groups(files, seed)
    for group in groups:
        references = {kind: _reference(group, kind, groups) for kind in ("plain", "stock")}
        group["ratios"] = {
            kind: _ratios(group, other, seed) for kind, other in references.items() if other is not None and other is not group
        }
    return {
        "schema": SCHEMA,
        "interval": {"level": stats.LEVEL, "method": stats.METHOD, "seed": seed},
        "planned_units": len(files.planned),
        "finished_units": len(files.units),
        "unfinished": [list(key) if isinstance(key, tuple) else key for key in files.unfinished],
        "failed": [
            {name: line.get(name) for name in ("suite", "arm", "concurrency", "repeat", "error")} for line in files.failures
        ],
        "problems": files.problems,
        "headline": _headline(groups),
        "groups": groups,
        "highest": {f"nsd_over_{kind}": _highest(groups, kind) for kind in ("plain", "stock")},
        "quality": quality_groups(files.quality, arms, seed),
        "diagnostics": files.diagnostics,
    }


def find(groups: list[dict], suite: str, arm: str, concurrency: int) -> dict | None:
    """The group of a suite's arm at a concurrency."""
    wanted = (suite, arm, concurrency)
    return next((group for group in groups if (group["suite"], group["arm"], group["concurrency"]) == wanted), None)


def tree(arm: dict) -> tuple:
    """The shape of an arm's draft tree: steps, top-k and nodes."""
    return arm.get("num_steps"), arm.get("topk"), arm.get("num_draft_tokens")


def _groups(files: RunFiles, seed: int) -> list[dict]:
    arms = files.arms
    lines: dict[tuple[str, str, int], dict[int, dict]] = {}
    for (suite, arm, concurrency, repeat), line in files.units.items():
        lines.setdefault((suite, arm, concurrency), {})[repeat] = line
    names, suites = list(arms), list(SUITES)
    order = sorted(lines, key=lambda key: (suites.index(key[0]) if key[0] in suites else len(suites), key[0], key[2], names.index(key[1])))
    groups = []
    for suite, arm, concurrency in order:
        repeats = dict(sorted(lines[suite, arm, concurrency].items()))
        fields = ("kind", "algorithm", "threshold", "proposals", "gate", "num_steps", "topk", "num_draft_tokens")
        figures = {metric.key: _figure(metric, repeats, seed) for metric in METRICS}
        groups.append(
            {"suite": suite, "arm": arm, "concurrency": concurrency}
            | {name: arms[arm].get(name) for name in fields}
            | {"repeats": list(repeats), "figures": {key: figure for key, figure in figures.items() if figure is not None}}
        )
    return groups


def _figure(metric: Metric, repeats: dict[int, dict], seed: int) -> dict | None:
    values = {repeat: metric.of(line) for repeat, line in repeats.items()}
    measured = [value for value in values.values() if value is not None]
    if not measured:
        return None
    return stats.mean(measured, seed).as_dict() | {"per_repeat": {str(repeat): value for repeat, value in values.items()}}


def _reference(group: dict, kind: str, groups: list[dict]) -> dict | None:
    """What a group is compared with: of its own suite if that has one at the concurrency, else of the comparison; among several
    the one with the same tree, then the first of the run. Two stock arms are compared with the first."""
    for suite in dict.fromkeys((group["suite"], "comparison")):
        found = [g for g in groups if (g["suite"], g["concurrency"], g["kind"]) == (suite, group["concurrency"], kind)]
        if found:
            same = [other for other in found if tree(other) == tree(group) and other["kind"] != group["kind"]]
            return (same or found)[0]
    return None


def _ratios(group: dict, other: dict, seed: int) -> dict:
    """Ratios of a group's figures to another's. Repeats of one suite were measured in turn and are paired; another suite was
    measured at another time, so that its mean divides and there is no interval."""
    paired = group["suite"] == other["suite"]
    figures = {}
    for key in RATIO_KEYS:
        above, below = (_measured(g, key) for g in (group, other))
        common = [repeat for repeat in above if repeat in below] if paired else []
        if common:
            ratio = stats.paired_ratio([above[r] for r in common], [below[r] for r in common], seed)
            if ratio is not None:
                figures[key] = ratio.as_dict() | {"per_repeat": {r: above[r] / below[r] for r in common}}
        elif not paired and above and sum(below.values()) > 0:
            value = (sum(above.values()) / len(above)) / (sum(below.values()) / len(below))
            figures[key] = stats.Estimate(value, None, None, min(len(above), len(below))).as_dict()
    common = [repeat for repeat in group["repeats"] if repeat in other["repeats"]]
    return {"arm": other["arm"], "suite": other["suite"], "repeats": common if paired else [], "figures": figures}


def _measured(group: dict, key: str) -> dict[str, float]:
    values = group["figures"].get(key, {}).get("per_repeat", {})
    return {repeat: value for repeat, value in values.items() if value is not None}


def _headline(groups: list[dict]) -> dict | None:
    """The arms that lead: of the comparison, NSD nearest to the paper's threshold, with its plain and stock references."""
    nsd = [g for g in groups if g["suite"] == "comparison" and g["kind"] == "nsd" and g["gate"] in (None, "nucleus")]
    nsd = [g for g in nsd if number(g["threshold"]) is not None]
    if not nsd:
        return None
    lead = min(nsd, key=lambda g: abs(g["threshold"] - HEADLINE_THRESHOLD))
    names = {kind: lead["ratios"].get(kind, {}).get("arm") for kind in ("plain", "stock")}
    return {"nsd": lead["arm"], **names, "concurrencies": sorted({g["concurrency"] for g in groups if g["suite"] == "comparison"})}


def _highest(groups: list[dict], kind: str) -> dict | None:
    """The largest ratio of output tokens/s that an NSD arm of the comparison reached, for the paper's "up to"."""
    found = []
    for index, group in enumerate(groups):
        ratio = group["ratios"].get(kind, {}).get("figures", {}).get("output_throughput")
        if ratio and group["kind"] == "nsd" and group["suite"] == "comparison":
            found.append(ratio | {"group": index, "arm": group["arm"], "concurrency": group["concurrency"]})
    return max(found, key=lambda ratio: ratio["value"]) if found else None
