"""Intervals over few repeats: known values, coverage, pairing."""

import math

import numpy as np
import pytest
from nsd_sglang.benchmarks import stats
from scipy.stats import t as student


def test_interval_of_three_repeats_by_hand():
    # All 27 resamples: the 2.5 % and 97.5 % quantiles are the smallest and largest repeat (each end alone has 1/27 = 3.7 %).
    estimate = stats.mean([10.0, 12.0, 14.0])
    factor = 4.3027 / 1.95996 * math.sqrt(3 / 2)
    assert estimate.value == 12.0 and estimate.count == 3
    assert estimate.low == pytest.approx(12 * (10 / 12) ** factor, rel=1e-4)
    assert estimate.high == pytest.approx(12 * (14 / 12) ** factor, rel=1e-4)


def test_figures_that_are_not_all_positive_are_stretched_linearly():
    estimate = stats.mean([0.0, 1.0, 2.0])
    factor = 4.3027 / 1.95996 * math.sqrt(3 / 2)
    assert (estimate.low, estimate.high) == pytest.approx((1 - factor, 1 + factor), rel=1e-4)


@pytest.mark.parametrize("count", [2, 3])
def test_interval_holds_every_repeat(count):
    chance = np.random.default_rng(count)
    for _ in range(100):
        values = chance.lognormal(3, 0.3, count)
        estimate = stats.mean(values)
        assert estimate.low <= values.min() and values.max() <= estimate.high


@pytest.mark.parametrize("count", [2, 3, 5])
def test_coverage_is_what_the_label_says(count):
    chance = np.random.default_rng(count)
    hits = 0
    for _ in range(600):
        estimate = stats.mean(chance.normal(100, 3, count))
        hits += estimate.low <= 100 <= estimate.high
    # Two repeats: 93 % in theory; the range of three alone would be 75 %.
    assert 0.90 <= hits / 600 <= 0.995


def test_ratio_pairs_the_repeats():
    drift = np.array([1.0, 1.4, 0.7])
    estimate = stats.paired_ratio(20 * drift, 10 * drift)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((2, 2, 2))
    shuffled = stats.paired_ratio(20 * drift, 10 * drift[[1, 2, 0]])
    assert shuffled.value == pytest.approx(2) and shuffled.high / shuffled.low > 1.5


def test_one_repeat_has_no_interval():
    assert stats.mean([5.0]) == stats.Estimate(5.0, None, None, 1)
    assert stats.paired_ratio([6.0], [4.0]) == stats.Estimate(1.5, None, None, 1)


def test_undefined_ratios():
    assert stats.paired_ratio([1.0, 1.0], [0.0, 1.0]) is None
    for wrong in (([1.0], []), ([], [])):
        with pytest.raises(ValueError, match="paired_ratio"):
            stats.paired_ratio(*wrong)


def test_many_repeats_are_resampled_from_the_seed():
    values = np.random.default_rng(1).normal(10, 1, 12)
    assert stats.mean(values, 3) == stats.mean(values, 3)
    assert stats.mean(values, 3) != stats.mean(values, 4)
    half = 2.201 * values.std(ddof=1) / math.sqrt(12)
    assert stats.mean(values, 3).high - values.mean() == pytest.approx(half, rel=0.15)


def test_student_quantiles():
    for freedom in (1, 2, 5, 10, 11, 30, 200):
        assert stats.student_975(freedom) == pytest.approx(student.ppf(0.975, freedom), rel=1e-4)
