"""Difference between two arms of a task that lm-eval or sgl-eval has scored, paired by problem, with its interval.

    python -m nsd_sglang.benchmarks.pair_tasks ARM_A ARM_B [--metric exact_match]

ARM_A and ARM_B are output folders (or single files) of the same task with the same problems: lm-eval's ``samples_*.jsonl``
(``--log_samples --output_path DIR``) or sgl-eval's ``output-rs*.jsonl``. Repeats of a problem are averaged first: problems are what
the interval resamples. Only problems that both arms have answered count. See recipes.md for the commands.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from nsd_sglang.benchmarks import stats
from nsd_sglang.benchmarks.errors import BenchError

PATTERNS = ("samples_*.jsonl", "output-rs*.jsonl")
SGL_EVAL_METRIC = "symbolic_correct"


def scores(path: Path, metric: str | None = None) -> dict[str, float]:
    """Mean score of every problem below ``path``, by ``FILTER/ID``.

    metric: of lm-eval's lines; by default the only one they have.

    Raises:
        BenchError: no sample files, or lines without that metric.
    """
    files = [path] if path.is_file() else sorted(file for pattern in PATTERNS for file in path.rglob(pattern))
    if not files:
        raise BenchError(f"{path}: no {' or '.join(PATTERNS)} in it; run lm-eval with --log_samples")
    found: dict[str, list[float]] = {}
    for file in files:
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if text.strip():
                try:
                    key, value = _score(json.loads(text), metric)
                except (ValueError, KeyError, TypeError) as error:
                    raise BenchError(f"{file}, line {number}: no score: {error}") from None
                found.setdefault(key, []).append(value)
    return {key: sum(values) / len(values) for key, values in found.items()}


def _score(line: dict, metric: str | None) -> tuple[str, float]:
    if "doc_id" not in line:
        return str(line["id"]), float(line[metric or SGL_EVAL_METRIC])
    names = [metric] if metric else line["metrics"]
    if len(names) != 1:
        raise ValueError(f"give --metric, one of {', '.join(names)}")
    return f"{line.get('filter', 'none')}/{line['doc_id']}", float(np.mean(line[names[0]]))


def paired(first: dict[str, float], second: dict[str, float], seed: int = 0) -> tuple[stats.Estimate, stats.Estimate, stats.Estimate]:
    """Mean of each arm and of the difference, first less second, over the problems that both have.

    Raises:
        BenchError: they have none in common.
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        raise BenchError("the two arms have no problem in common")
    a, b = (np.array([arm[key] for key in common]) for arm in (first, second))
    return tuple(stats.estimate(lambda picks, x=x: x[picks].mean(axis=-1), len(common), seed) for x in (a, b, a - b))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pair_tasks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, metavar="ARM_A")
    parser.add_argument("second", type=Path, metavar="ARM_B")
    parser.add_argument("--metric", help="where lm-eval wrote more than one")
    args = parser.parse_args(arguments)
    try:
        estimates = paired(scores(args.first, args.metric), scores(args.second, args.metric))
    except (BenchError, OSError) as error:
        print(f"pair_tasks: {error}", file=sys.stderr)
        return 2
    for name, estimate in zip((str(args.first), str(args.second), "difference"), estimates):
        interval = "" if estimate.low is None else f"  [{estimate.low:.4f}, {estimate.high:.4f}]"
        print(f"{estimate.value:8.4f}{interval}  {name}")
    print(f"{estimates[0].count} problems; intervals: {stats.LEVEL:.0%}, paired by problem")
    return 0


if __name__ == "__main__":
    sys.exit(main())
