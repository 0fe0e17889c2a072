"""Bootstrap intervals over few repeats.

A benchmark repeats each arm two to five times. The plain percentile bootstrap of so few values cannot reach past the smallest
and the largest of them: over three values its 95 % interval *is* their range, which holds the true mean 75 % of the time, not
95 %. So its distance from the estimate is stretched by ``t(0.975, n - 1) / z(0.975) * sqrt(n / (n - 1))``, the two reasons why
it is too narrow: the bootstrap's variance divides by n where n - 1 is unbiased, and n values do not know their own spread
(both named by Hesterberg, "What Teachers Should Know About the Bootstrap", arXiv 1411.5279). Of two or
three repeats the result holds every one. Two give a wide interval; that is what two repeats are worth.

Positive figures are stretched on a log scale, which suits ratios and keeps the lower end positive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000
# Up to this many units all n^n resamples are enumerated (3,125 for five): no chance in the interval, and no seed.
EXHAUSTIVE = 5
METHOD = (
    f"{LEVEL:.0%} percentile bootstrap over repeats (every resample up to {EXHAUSTIVE} repeats, else {RESAMPLES:,} seeded ones), "
    "stretched by t/z * sqrt(n / (n - 1)); ratios resample the repeats that both arms have, in pairs"
)
# Student's t at 0.975 for 1 to 10 degrees of freedom, where the expansion below is not exact enough.
_T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


@dataclass(frozen=True)
class Estimate:
    """A figure over repeats: ``low`` and ``high`` are None where there is no interval (fewer than two repeats)."""

    value: float
    low: float | None
    high: float | None
    count: int

    def as_dict(self) -> dict[str, float | int | None]:
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count}


def mean(values: Sequence[float], seed: int = 0) -> Estimate:
    """Mean of ``values`` (one per repeat) with its interval."""
    array = np.asarray(values, dtype=np.float64)
    return estimate(lambda picks: array[picks].mean(axis=-1), len(array), seed, log=bool((array > 0).all()))


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float], seed: int = 0) -> Estimate | None:
    """Ratio of the means of two arms, repeats paired by position; None where it is undefined (a mean of zero or less below).

    Raises:
        ValueError: the two have different lengths or none at all.
    """
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if len(above) != len(below) or not len(above):
        raise ValueError("paired_ratio needs as many numerators as denominators, at least one")
    if (below <= 0).any():
        return None
    return estimate(
        lambda picks: above[picks].mean(axis=-1) / below[picks].mean(axis=-1), len(above), seed, log=bool((above > 0).all())
    )


def estimate(statistic: Callable[[np.ndarray], np.ndarray], count: int, seed: int = 0, *, log: bool = False) -> Estimate:
    """A statistic of ``count`` units and its stretched bootstrap interval.

    Args:
        statistic: from int64 ``[R, count]`` unit numbers to float64 ``[R]``, the statistic of each resample.
        count: units, at least one.
        seed: of the resamples, used above ``EXHAUSTIVE`` units.
        log: stretch on a log scale; the statistic must then be positive.
    """
    if count < 1:
        raise ValueError("a statistic needs at least one unit")
    value = float(statistic(np.arange(count)[None])[0])
    if count < 2:
        return Estimate(value, None, None, count)
    samples = np.asarray(statistic(_resamples(count, seed)), dtype=np.float64)
    samples = samples[np.isfinite(samples)]  # a ratio of sums whose resample has no denominator
    if not math.isfinite(value) or not len(samples):
        return Estimate(value, None, None, count)
    # A step function of the samples: an interpolated quantile would pull in the ends of three repeats' 27 resamples.
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    factor = stretch(count)
    if log:
        return Estimate(value, value * (low / value) ** factor, value * (high / value) ** factor, count)
    return Estimate(value, value + (low - value) * factor, value + (high - value) * factor, count)


def stretch(count: int) -> float:
    """How much wider than the percentile bootstrap the interval of ``count`` >= 2 units is made."""
    return student_975(count - 1) / NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt(count / (count - 1))


def student_975(freedom: int) -> float:
    """Student's t at 0.975; the Cornish-Fisher expansion past the table is exact to four decimals there."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def _resamples(count: int, seed: int) -> np.ndarray:
    if count <= EXHAUSTIVE:
        return np.array(list(itertools.product(range(count), repeat=count)), dtype=np.int64)
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
