"""A run with --personalise reports FedCUAU's two measures, whatever the method."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.runs.api import run

OPTIONS = {"scenario": "digits-dirichlet-quarters", "clients": 8, "rounds": 2, "workers": 1, "model": "mlp:hidden=16"}


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedcuau:clusters=2", "local"])
def test_summary_and_rows_hold_the_accuracy_after_fine_tuning(method: str, tmp_path: Path) -> None:
    plain = run(method, **OPTIONS)
    result = run(method, personalise=5, out=tmp_path / "run", **OPTIONS)
    assert plain.summary.personalised is None
    assert result.summary.accuracy == plain.summary.accuracy
    assert result.summary.bytes == plain.summary.bytes
    after = [row.personalised for row in result.clients]
    assert result.summary.personalised.mean == pytest.approx(sum(after) / 8)
    assert result.summary.personalised.mean > result.summary.accuracy.mean
    # Where layers are private, the first cluster has no whole model to judge.
    assert (result.summary.initial is None) == (method in ("fedper", "local"))
    assert (tmp_path / "run" / "summary.json").exists()


def test_initial_accuracy_is_that_of_the_first_cluster_and_differs_from_the_last() -> None:
    result = run("fedcuau:clusters=2", personalise=1, **OPTIONS)
    base = run("fedavg", personalise=1, **OPTIONS)
    alone = run("fedcuau:clusters=1", personalise=1, **OPTIONS)
    assert alone.summary.initial == base.summary.initial == pytest.approx(base.summary.accuracy.mean, abs=0.05)
    assert result.summary.initial != base.summary.initial
