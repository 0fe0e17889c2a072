"""Aggregate the answers of `quality.jsonl`: likelihood, entropy, length, distinct-n and pass@1 by arm, paired with plain decoding.

Prompts are the unit: all samples of a prompt stay together in a resample, and a difference between two arms resamples the
prompts that both answered.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nsd_sglang.benchmarks import stats
from nsd_sglang.benchmarks.run_files import number


def quality_groups(lines: list[dict], arms: dict[str, dict], seed: int) -> list[dict]:
    """One group per suite (``quality``, ``humaneval``) and arm, arms in the order of the run.

    Returns:
        ``suite``, ``arm``, ``prompts``, ``answers``, ``figures`` by name and ``differences`` to ``plain`` and ``stock``. Figures per
        token weigh every token alike: sums over the answers, divided. ``distinct_n`` is the mean over the answers of what the
        lines say; it falls as answers grow longer.
    """
    by_arm: dict[tuple[str, str], dict[object, list[dict]]] = {}
    for line in lines:
        key = str(line.get("suite", "quality")), str(line.get("arm"))
        by_arm.setdefault(key, {}).setdefault(str(line.get("prompt")), []).append(line)
    names = list(arms)
    order = sorted(by_arm, key=lambda key: (key[0] != "quality", key[0], names.index(key[1]) if key[1] in names else len(names)))
    groups = []
    for suite, arm in order:
        kind = arms.get(arm, {}).get("kind")
        prompts = by_arm[suite, arm]
        groups.append(
            {
                "suite": suite,
                "arm": arm,
                "kind": kind,
                "threshold": arms.get(arm, {}).get("threshold"),
                "prompts": len(prompts),
                "answers": sum(map(len, prompts.values())),
                "figures": _figures(prompts, seed),
            }
        )
    for group in groups:
        group["differences"] = {}
        for kind in ("plain", "stock"):
            other = next((g for g in groups if g["suite"] == group["suite"] and g["kind"] == kind), None)
            if other is not None and other is not group:
                pair = by_arm[group["suite"], group["arm"]], by_arm[other["suite"], other["arm"]]
                group["differences"][kind] = {"arm": other["arm"], "figures": _differences(*pair, seed)}
    return groups


def _field(name: str) -> Callable[[dict], float | None]:
    return lambda line: number(line.get(name))


def _scored(line: dict) -> float | None:
    """Tokens in the sum of log-likelihoods: those to which the target, after top-k and top-p, gives a probability."""
    tokens = number(line.get("tokens"))
    return None if tokens is None else tokens - (number(line.get("outside")) or 0)


def _one(line: dict) -> float:
    return 1.0


# Figure: what divides what, both summed over the answers.
_SHARES: dict[str, tuple[Callable[[dict], float | None], Callable[[dict], float | None]]] = {
    "logprob_per_token": (_field("logprob"), _scored),
    "entropy_per_token": (_field("entropy"), _field("tokens")),
    "outside_per_token": (_field("outside"), _field("tokens")),
    "tokens_per_answer": (_field("tokens"), _one),
    "stopped": (lambda line: float(line["finish"] == "stop") if line.get("finish") else None, _one),
    "passed": (lambda line: float(line["passed"]) if isinstance(line.get("passed"), bool) else None, _one),
    "distinct_1": (_field("distinct_1"), _one),
    "distinct_2": (_field("distinct_2"), _one),
    "distinct_3": (_field("distinct_3"), _one),
    "deviation_per_token": (_field("tv_bound"), _field("tokens")),
    "rescued_per_token": (_field("rescued"), _field("tokens")),
    "tokens_per_second": (_field("tokens"), _field("seconds")),
}
_COMPARED = ("logprob_per_token", "entropy_per_token", "tokens_per_answer", "passed", "distinct_2")
_WITHIN_ONE = ("stopped", "passed", "distinct_1", "distinct_2", "distinct_3")


def _sums(prompts: dict[object, list[dict]], name: str) -> dict[object, tuple[float, float]]:
    """By prompt: the sum of the figure's numerators and of what divides them, over the answers that have both."""
    above, below = _SHARES[name]
    sums = {}
    for prompt, answers in prompts.items():
        pairs = [(above(line), below(line)) for line in answers]
        pairs = [pair for pair in pairs if None not in pair]
        if pairs:
            sums[prompt] = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    return sums


def _share(sums: list[tuple[float, float]], picks: np.ndarray) -> np.ndarray:
    above, below = np.array(sums, dtype=np.float64).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return above[picks].sum(axis=-1) / below[picks].sum(axis=-1)


def _figures(prompts: dict[object, list[dict]], seed: int) -> dict[str, dict]:
    figures = {}
    for name in _SHARES:
        sums = list(_sums(prompts, name).values())
        if sums and sum(below for _, below in sums) > 0:
            figure = stats.estimate(lambda picks: _share(sums, picks), len(sums), seed).as_dict()
            figures[name] = _within_shares(figure) if name in _WITHIN_ONE else figure
    return figures


def _within_shares(figure: dict) -> dict:
    """The interval of a share, cut to [0, 1]. Where no or every answer passed the bootstrap sees no spread; the far end is then
    the exact one, the share at which n answers of n go the same way with probability (1 - level) / 2."""
    if figure["low"] is None:
        return figure
    low, high = max(figure["low"], 0.0), min(figure["high"], 1.0)
    unseen = 1 - ((1 - stats.LEVEL) / 2) ** (1 / figure["count"])
    if figure["value"] == 0:
        high = max(high, unseen)
    elif figure["value"] == 1:
        low = min(low, 1 - unseen)
    return figure | {"low": low, "high": high}


def _differences(ours: dict[object, list[dict]], theirs: dict[object, list[dict]], seed: int) -> dict[str, dict]:
    figures = {}
    for name in _COMPARED:
        a, b = _sums(ours, name), _sums(theirs, name)
        common = [prompt for prompt in a if prompt in b]
        left, right = [a[prompt] for prompt in common], [b[prompt] for prompt in common]
        if common and min(sum(below for _, below in side) for side in (left, right)) > 0:
            figures[name] = stats.estimate(
                lambda picks: _share(left, picks) - _share(right, picks), len(common), seed
            ).as_dict()
    return figures
