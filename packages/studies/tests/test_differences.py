"""Paired differences: worked by hand, against scipy's own tests, and corrected for their number."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from coterie.errors import ConfigError
from coterie_studies.differences import find_baseline, holm, interval, p_value, paired_differences, standard_error


def test_seeds_are_tested_by_the_means_of_their_clients_differences():
    scores = {
        "base": {0: {"a": 0.5, "b": 0.5, "gone": 0.0}, 1: {"a": 0.4, "b": 0.6}, 7: {"a": 1.0}},
        "mine": {0: {"b": 0.7, "a": 0.6, "new": 1.0}, 1: {"a": 0.7, "b": 0.8}},
        "elsewhere": {3: {"a": 0.1}},
    }
    (found,) = paired_differences(scores, "base")
    gaps = [0.15, 0.25]
    assert (found.method, found.over, found.pairs) == ("mine", "seeds", 2)
    assert found.mean == pytest.approx(0.2)
    assert found.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert [found.low, found.high] == pytest.approx(list(stats.ttest_1samp(gaps, 0).confidence_interval(0.95)))
    assert found.p_holm == found.p


def test_one_seed_is_tested_over_its_clients():
    values = dict(zip("abcdef", (0.1, 0.3, 0.2, 0.25, 0.5, 0.15), strict=True))
    scores = {"base": {4: dict.fromkeys(values, 0.1)}, "mine": {4: values}}
    gaps = [value - 0.1 for value in values.values()]
    for test in ("t", "wilcoxon"):  # ranks know no correction for shared training
        (found,) = paired_differences(scores, "base", test=test)
        assert (found.over, found.pairs) == ("clients", 6)
        assert found.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    (shared,) = paired_differences(scores, "base", shared=0.5)
    ratio = statistics.fmean(gaps) / (statistics.stdev(gaps) * math.sqrt(1 / 6 + 0.5))
    assert shared.p == pytest.approx(2 * stats.t.sf(ratio, 5))


def test_what_cannot_be_tested_has_no_p():
    (found,) = paired_differences({"base": {0: {"a": 0.5}}, "mine": {0: {"a": 0.75}}}, "base")
    assert (found.mean, found.low, found.high, found.p, found.p_holm) == (0.25, None, None, None, None)
    assert p_value([0.0, 0.0]) == p_value([0.0, 0.0], "wilcoxon") == 1.0
    assert p_value([0.5, 0.5]) == 0.0
    assert interval([0.5, 0.5]) == (0.5, 0.5)
    assert standard_error([1.0, 3.0]) == pytest.approx(np.std([1, 3], ddof=1) / np.sqrt(2))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, None, 0.9]) == pytest.approx([1.0, None, 1.0])
    assert holm([]) == []


def test_a_baseline_is_found_by_its_name_where_that_is_clear():
    methods = ["fedavg", "ifca:k=2", "ifca:k=3", "cfl:fallback=false"]
    assert find_baseline("fedavg", methods) == "fedavg"
    assert find_baseline("cfl", methods) == "cfl:fallback=false"
    assert find_baseline("ifca:k=3", methods) == "ifca:k=3"
    with pytest.raises(ConfigError, match="ifca:k=2 and ifca:k=3 have that name"):
        find_baseline("ifca", methods)
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        find_baseline("fedagv", methods)
