from nsd_sglang.benchmarks.text_stats import distinct, text_stats


def test_distinct_counts_different_n_grams():
    assert distinct([1, 2, 1, 2], 1) == 0.5
    assert distinct([1, 2, 1, 2], 2) == 2 / 3
    assert distinct([1, 1, 1, 1, 1], 3) == 1 / 3
    assert distinct([1, 2], 3) is None
    assert text_stats([1, 2, 3]) == {"distinct_1": 1.0, "distinct_2": 1.0, "distinct_3": 1.0}
