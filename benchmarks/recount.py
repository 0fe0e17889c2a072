"""Count a benchmark again from what sglang.bench_serving and the servers' counters said: ``python benchmarks/recount.py DIR``

Every figure of ``results.jsonl`` and every figure, ratio and interval of ``summary.json`` is computed a second time from the
files in ``raw/``, by code that shares nothing with the benchmark (standard library alone), and compared. It also checks that no
arm had other prompts, another warm-up or another command than the others. Exit code 1 when anything differs.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from pathlib import Path

TOLERANCE = 1e-6
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms")
PLAIN_FIGURES = ("output_throughput", "request_throughput", "accept_length", "verify_calls_per_token", "target_ms_per_call", "deviation_per_token")
# Student's t at 0.975 for 1, 2, 3 and 4 degrees of freedom; intervals of more repeats are drawn by chance and are not recounted.
T_975 = (12.7062, 4.3027, 3.1824, 2.7764)
Z_975 = statistics.NormalDist().inv_cdf(0.975)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    try:
        run = json.loads((directory / "run.json").read_text())
        units = [json.loads(line) for line in (directory / "results.jsonl").read_text().split("\n")[:-1] if line]
    except (OSError, ValueError) as error:
        print(f"recount: {directory} holds no run that can be read: {error}", file=sys.stderr)
        return 2
    kinds = {arm["name"]: arm["kind"] for arm in run["arms"]}
    differences: list[str] = []
    recounted: dict[tuple, dict] = {}
    checked = 0
    for unit in units:
        key = (unit["suite"], unit["arm"], unit["concurrency"], unit["repeat"])
        if key in recounted:
            differences.append(f"{key}: measured twice")
        figures, raw = recount(directory, unit, kinds.get(unit["arm"], "nsd"))
        recounted[key] = figures | {"raw": raw}
        for name, value in flat(figures).items():
            checked += 1
            compare(differences, f"{key} {name}", flat(unit).get(name), value)
    differences += fairness(units, recounted)
    summary = directory / "summary.json"
    if summary.is_file():
        checked += recount_summary(json.loads(summary.read_text()), recounted, kinds, differences)
    print(ratio_table(recounted, kinds))
    print(f"{len(units)} units, {checked} figures recounted{'' if summary.is_file() else ' (no summary.json)'}, {len(differences)} differ")
    for line in differences:
        print(f"DIFFERS  {line}")
    return 1 if differences else 0


def recount(directory: Path, unit: dict, kind: str) -> tuple[dict, dict]:
    """The figures of one unit from its raw files, and the raw line."""
    raw = json.loads((directory / unit["raw"]).read_text().splitlines()[-1])
    counters = json.loads((directory / unit["counters"]).read_text())
    added = {name: value - counters["before"].get(name, 0.0) for name, value in counters["after"].items()}
    whole = [i for i, error in enumerate(raw["errors"]) if not error]
    tokens = sum(raw["output_lens"][i] for i in whole)
    decoded = tokens - len(whole)
    gaps = [gap for i in whole for gap in raw["itls"][i]]
    verify = decoded if kind == "plain" else round(added.get("sglang:spec_verify_calls_total", 0))
    calls = sum(value for name, value in added.items() if name.startswith("sglang:cuda_graph_passes_total{decode"))
    forward = added.get("sglang:forward_execution_seconds_total" + ("{decode}" if kind == "plain" else "{target_verify}"))
    bound = added.get("sglang:spec_nsd_tv_bound_sum") if kind == "nsd" else None
    rescued = added.get("sglang:spec_nsd_rescued_tokens_total") if kind == "nsd" else None
    figures = {
        "num_requests": len(raw["output_lens"]),
        "completed": len(whole),
        "duration_s": raw["duration"],
        "input_tokens": sum(raw["input_lens"]),
        "output_tokens": tokens,
        "output_throughput": tokens / raw["duration"],
        "request_throughput": len(whole) / raw["duration"],
        "ttft_ms": spread([raw["ttfts"][i] * 1000 for i in whole]),
        # The last token's time is not in the details; bench_serving's own figure is held against the gaps below.
        "tpot_ms": {"mean": raw["mean_tpot_ms"], "p50": raw["median_tpot_ms"], "p99": raw["p99_tpot_ms"]},
        "itl_ms": spread([gap * 1000 for gap in gaps]),
        "verify_calls": verify,
        "decoded_tokens": decoded,
        "accept_length": decoded / verify if verify else None,
        "verify_calls_per_token": verify / decoded if decoded else None,
        "target_calls": round(calls),
        "target_ms_per_call": forward * 1000 / calls if forward is not None and calls else None,
        "rescued": None if rescued is None else round(rescued),
        "tv_bound": bound,
        "deviation_per_token": bound / decoded if bound is not None and decoded else None,
    }
    return figures, raw


def spread(values: list[float]) -> dict:
    return {"mean": sum(values) / len(values), "p50": percentile(values, 0.5), "p99": percentile(values, 0.99)} if values else {}


def percentile(values: list[float], share: float) -> float:
    """Linear interpolation between the two nearest ranks."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def flat(figures: dict) -> dict:
    """``ttft_ms.mean`` and so on for the nested ones."""
    found = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": number for inner, number in value.items()}
        else:
            found[name] = value
    return found


def compare(differences: list[str], what: str, written: object, counted: object) -> None:
    numbers = all(isinstance(value, (int, float)) for value in (written, counted))
    same = math.isclose(written, counted, rel_tol=TOLERANCE, abs_tol=1e-9) if numbers else written == counted
    if not same:
        differences.append(f"{what}: written {written}, counted {counted}")


def fairness(units: list[dict], recounted: dict[tuple, dict]) -> list[str]:
    """What one arm had and another had not, within a suite, concurrency and repeat."""
    found = []
    groups: dict[tuple, list[dict]] = {}
    for unit in units:
        groups.setdefault((unit["suite"], unit["concurrency"], unit["repeat"]), []).append(unit)
    for where, members in groups.items():
        first = members[0]
        for unit in members:
            raw, other = (recounted[(u["suite"], u["arm"], u["concurrency"], u["repeat"])]["raw"] for u in (unit, first))
            if raw["input_lens"] != other["input_lens"]:
                found.append(f"{where}: {unit['arm']} and {first['arm']} had other prompts")
            if unit["warm_up_requests"] != first["warm_up_requests"]:
                found.append(f"{where}: {unit['arm']} and {first['arm']} had another warm-up")
            if bare(unit["command"]) != bare(first["command"]):
                found.append(f"{where}: {unit['arm']} and {first['arm']} were loaded by another command")
            # The last gap ends a little before the answer does.
            gaps = [sum(gap) / (n - 1) * 1000 for gap, n in zip(raw["itls"], raw["output_lens"]) if n > 1]
            if gaps and not 0.9 * raw["mean_tpot_ms"] - 5 <= sum(gaps) / len(gaps) <= raw["mean_tpot_ms"] * 1.001 + 1:
                found.append(f"{where}: {unit['arm']}: mean TPOT {raw['mean_tpot_ms']} ms, but {sum(gaps) / len(gaps)} ms by the gaps")
    return found


def bare(command: list[str]) -> list[str]:
    """A command without what has to differ: the server's port and the file of the result."""
    return [word for before, word in zip([""] + command, command) if before not in ("--port", "--output-file")]


def figure(recounted: dict[tuple, dict], suite: str, arm: str, concurrency: int, name: str) -> dict[int, float]:
    """A figure of an arm by repeat."""
    return {
        key[3]: flat(unit)[name]
        for key, unit in recounted.items()
        if key[:3] == (suite, arm, concurrency) and flat(unit).get(name) is not None
    }


def recount_summary(summary: dict, recounted: dict[tuple, dict], kinds: dict[str, str], differences: list[str]) -> int:
    checked = 0
    names = [*PLAIN_FIGURES, *(f"{latency}.{part}" for latency in LATENCIES for part in ("mean", "p50", "p99"))]
    seen = set()
    for group in summary["groups"]:
        where = group["suite"], group["arm"], group["concurrency"]
        seen.add(where)
        for name in names:
            values = figure(recounted, *where, name)
            if values or name in group["figures"]:
                written = group["figures"].get(name, {})
                mean = sum(values.values()) / len(values) if values else None
                compare(differences, f"summary {where} {name}", written.get("value"), mean)
                checked += 1 + interval(differences, f"summary {where} {name}", written, [list(values.values())])
        for kind, ratios in group["ratios"].items():
            if kinds.get(ratios["arm"]) != kind:
                differences.append(f"summary {where}: ratio to {kind}, but {ratios['arm']} is {kinds.get(ratios['arm'])}")
            for name, written in ratios["figures"].items():
                above = figure(recounted, *where, name)
                below = figure(recounted, ratios["suite"], ratios["arm"], group["concurrency"], name)
                what = f"summary {where} {name} / {ratios['arm']}"
                common = sorted(set(above) & set(below)) if ratios["suite"] == group["suite"] else []
                tops = [above[r] for r in common] or list(above.values())
                bottoms = [below[r] for r in common] or list(below.values())
                mean = (sum(tops) / len(tops)) / (sum(bottoms) / len(bottoms)) if tops and bottoms else None
                compare(differences, what, written.get("value"), mean)
                checked += 1 + (interval(differences, what, written, [tops, bottoms]) if common else 0)
    for where in {key[:3] for key in recounted} - seen:
        differences.append(f"summary: {where} is missing")
    return checked


def interval(differences: list[str], what: str, written: dict, series: list[list[float]]) -> int:
    """Recount a stretched bootstrap interval of two to five repeats; returns how many ends were compared."""
    count = len(series[0])
    if not 2 <= count <= 5 or any(value <= 0 for values in series for value in values):
        return 0

    def statistic(picks) -> float:
        sums = [sum(values[pick] for pick in picks) for values in series]
        return sums[0] / (sums[1] if len(sums) > 1 else count)

    value = statistic(range(count))
    samples = sorted(statistic(picks) for picks in itertools.product(range(count), repeat=count))
    stretch = T_975[count - 2] / Z_975 * math.sqrt(count / (count - 1))
    for end, share in (("low", 0.025), ("high", 0.975)):
        sample = samples[max(0, math.ceil(share * len(samples) - 1e-9) - 1)]
        compare(differences, f"{what} {end}", written.get(end), value * (sample / value) ** stretch)
    return 2


def ratio_table(recounted: dict[tuple, dict], kinds: dict[str, str]) -> str:
    """Output tokens/s of every arm, and its ratio to plain decoding and to stock speculation of the same suite."""
    lines = [f"{'suite':12} {'arm':32} {'at':>3} {'tokens/s':>9} {'/plain':>7} {'/stock':>7}"]
    for suite, arm, concurrency in dict.fromkeys(key[:3] for key in recounted):
        own = figure(recounted, suite, arm, concurrency, "output_throughput")
        cells = []
        for kind in ("plain", "stock"):
            other = next((key[1] for key in recounted if key[0] == suite and key[2] == concurrency and kinds.get(key[1]) == kind), None)
            base = figure(recounted, suite, other, concurrency, "output_throughput") if other else {}
            common = set(own) & set(base)
            cells.append(f"{sum(own[r] for r in common) / sum(base[r] for r in common):7.3f}" if common else f"{'':7}")
        lines.append(f"{suite:12} {arm:32} {concurrency:3} {sum(own.values()) / len(own):9.2f} {cells[0]} {cells[1]}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
