"""Intervals beside formulas and beside plain loops."""

import math
import statistics

import numpy as np
import pytest

from quality import bootstrap

SAMPLE = np.random.default_rng(3).gamma(2.0, 1.0, 400)


def test_an_interval_of_a_mean_is_that_of_the_normal_law():
    found = bootstrap.mean(SAMPLE)
    error = statistics.stdev(SAMPLE) / math.sqrt(len(SAMPLE))
    assert found["value"] == pytest.approx(SAMPLE.mean()) and found["documents"] == 400
    assert found["low"] == pytest.approx(SAMPLE.mean() - 1.96 * error, rel=0.02)
    assert found["high"] == pytest.approx(SAMPLE.mean() + 1.96 * error, rel=0.02)


def test_resampling_is_that_of_a_plain_loop():
    sample, base = SAMPLE[:20], SAMPLE[20:40]
    found = bootstrap.ratio(sample, base, resamples=50, seed=5)
    chosen = np.random.default_rng(5).integers(0, 20, (50, 20))
    ratios = [sum(sample[i] for i in row) / sum(base[i] for i in row) for row in chosen]
    assert found["low"] == pytest.approx(np.quantile(ratios, 0.025))
    assert found["high"] == pytest.approx(np.quantile(ratios, 0.975))
    assert found["value"] == pytest.approx(sample.sum() / base.sum())


def test_pairs_are_kept_together():
    # The same difference in every document: no spread, however much the documents differ.
    found = bootstrap.difference(SAMPLE + 0.5, SAMPLE)
    assert found["low"] == pytest.approx(0.5) and found["high"] == pytest.approx(0.5)
    found = bootstrap.ratio(SAMPLE * 0.3, SAMPLE)
    assert found["low"] == pytest.approx(0.3) and found["high"] == pytest.approx(0.3)


def test_the_seed_is_fixed():
    assert bootstrap.mean(SAMPLE) == bootstrap.mean(SAMPLE)


def test_few_documents():
    assert bootstrap.mean([2.0]) == {"value": 2.0, "documents": 1}
    assert bootstrap.ratio([1.0, 2.0], [0.0, 0.0]) is None
    with pytest.raises(ValueError, match="2, 1 documents"):
        bootstrap.difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError):
        bootstrap.mean([])


def test_spearman():
    assert bootstrap.spearman([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert bootstrap.spearman([1, 2, 3], [9, 5, 1]) == pytest.approx(-1)
    assert bootstrap.spearman([1, 1, 1], [1, 2, 3]) == 0
    assert bootstrap.ranks([3.0, 1.0, 3.0]).tolist() == [2.5, 1.0, 2.5]


def test_resamples_without_a_ratio_are_left_out():
    # 0.5^8 of the resamples have a baseline of zeros only: 0.4 %.
    sample, base = [1.0] * 8, [1.0, 0.0] * 4
    found = bootstrap.ratio(sample, base)
    assert found["value"] == 2 and 0 < found["left_out"] < 100 and 1 <= found["low"] < found["high"] <= 8
    # A third of them: no bounds.
    found = bootstrap.ratio([1.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    assert found["left_out"] > 2000 and "low" not in found and found["value"] == 3
    assert "left_out" not in bootstrap.ratio(SAMPLE, SAMPLE)
