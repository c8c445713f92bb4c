"""Was it worth it? The one test that report, terminal, page and notebook share: by hand, calibrated, in words."""

from __future__ import annotations

import itertools
import math
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import coterie
from coterie.runs.metrics import constant_score
from coterie.trainers.losses import absolute_loss, huber_loss
from coterie_views.live.watched import WatchedRun
from coterie_views.verdict import LEVEL, ClientScores, estimate, judge, verdict, verdict_note, verdicts


def scores(
    values: list[float], *, real: bool = False, samples: int = 50, constant: float | None = None
) -> ClientScores:
    names = [f"c{i}" for i in range(len(values))]
    own = dict(zip(names, values, strict=True))
    found = ClientScores(samples=dict.fromkeys(names, samples))
    found.loss = own if real else dict.fromkeys(names, 1.0)
    found.accuracy = {} if real else own
    found.constants = {} if constant is None else dict.fromkeys(names, constant)
    return found


def test_the_interval_is_students_t_with_nadeau_and_bengios_error() -> None:
    a, b = [0.9, 0.8, 0.95, 0.7], [0.6, 0.65, 0.7, 0.55]
    [found] = judge(scores(a), {"fedavg": scores(b)}, train_samples=800)
    d = np.subtract(a, b)
    error = d.std(ddof=1) * math.sqrt(1 / 4 + 200 / 800)
    half = stats.t.ppf(1 - LEVEL / 2, 3) * error
    assert found.interval == pytest.approx((d.mean() - half, d.mean() + half))
    assert found.gains[-1] == ("c0", pytest.approx(0.3))
    # Baselines share the level: their intervals hold together.
    both = judge(scores(a, constant=0.1), {"fedavg": scores(b)}, train_samples=800)
    wider = stats.t.ppf(1 - LEVEL / 4, 3) * error
    assert [one.baseline for one in both] == ["fedavg", "the client's most common label"]
    assert both[0].interval == pytest.approx((d.mean() - wider, d.mean() + wider))


def test_a_loss_is_compared_by_its_ratio_and_less_is_better() -> None:
    base = [1.0, 100.0, 10.0, 3.0, 40.0]
    [found] = judge(scores([v / 2 for v in base], real=True), {"local": scores(base, real=True)}, 1000)
    assert found.difference.mean == pytest.approx(math.log(0.5))
    assert found.answer == "better"
    assert str(found).startswith("better than local, loss −50\u00a0% (−50 to −50)")
    [worse] = judge(scores([2.2 * v for v in base], real=True), {"local": scores(base, real=True)}, 1000)
    assert worse.answer == "worse"
    assert not judge(scores([-1.0, 0.0], real=True), {"local": scores([1.0, 1.0], real=True)})


def test_each_answer_has_its_word() -> None:
    high, level, low = [0.9, 0.91, 0.92, 0.9], [0.5, 0.92, 0.6, 0.99], [0.3, 0.31, 0.3, 0.32]

    def told(own: list[float], others: dict[str, list[float]], constant: float | None = None) -> str:
        return verdict(judge(scores(own, constant=constant), {k: scores(v) for k, v in others.items()}, 2000))

    assert told(high, {"fedavg": low}).startswith(
        "Was it worth it? Yes: better than fedavg, accuracy +60.0\u00a0points ("
    )
    assert told(low, {"fedavg": high}).startswith("Was it worth it? No: worse than fedavg, accuracy −60.0")
    mixed = told(high, {"fedavg": low, "local": level})
    assert mixed.startswith("Was it worth it? Undecided: against local, ")
    assert "; better than fedavg, " in mixed
    # A model below the most common label is never called worth it.
    assert "No: worse than the client's most common label" in told(high, {"fedavg": low}, constant=0.99)
    assert told([0.9], {"fedavg": [0.5]}) == (
        "Was it worth it? Undecided: against fedavg, accuracy +40.0\u00a0points (one client alone)."
    )
    assert told(high, {}) == ""
    assert verdict_note([]) == ""


def test_the_pooled_mean_weighs_clients_by_their_test_samples() -> None:
    values, samples = {"a": 1.0, "b": 0.5, "c": 0.7}, {"a": 3, "b": 300, "c": 100}
    found = estimate(values, samples)
    assert found is not None
    assert found.mean == pytest.approx(2.2 / 3)
    assert found.pooled == pytest.approx((3 + 150 + 70) / 403)
    residuals = np.array([3 * (1 - found.pooled), 300 * (0.5 - found.pooled), 100 * (0.7 - found.pooled)]) * 3 / 403
    half = stats.t.ppf(0.975, 2) * residuals.std(ddof=1) / math.sqrt(3)
    assert found.pooled_interval == pytest.approx((found.pooled - half, found.pooled + half))
    assert estimate({"a": 0.5}, {"a": 0}) is None


def test_clients_that_share_their_training_are_not_independent() -> None:
    """Differences with an intraclass correlation of 0.05: Student's t alone calls every third pair different."""
    generator, called, plain = np.random.default_rng(0), 0, 0
    for _ in range(400):
        difference = math.sqrt(0.05) * generator.normal() + math.sqrt(0.95) * generator.normal(size=60)
        own, base = scores(list(0.5 + 0.05 * difference)), scores([0.5] * 60)
        [found] = judge(own, {"fedavg": base}, train_samples=8 * 60 * 50)
        called += found.answer != "undecided"
        plain += stats.ttest_1samp(difference, 0).pvalue < LEVEL
    assert plain > 0.2 * 400
    assert called <= LEVEL * 400


def federation(clients: int, rows: int) -> coterie.Federation:
    generator = torch.Generator().manual_seed(5)
    weights, made = torch.randn(10, generator=generator), {}
    for i in range(clients):
        x = torch.randn(rows, 10, generator=generator)
        made[f"c{i}"] = (x, (x @ weights + 2 * torch.randn(rows, generator=generator) > 0).long())
    return coterie.Federation.from_tensors(made)


def test_runs_that_differ_in_the_seed_alone_are_not_called_different() -> None:
    data = federation(24, 60)
    how = {"rounds": 5, "model": "mlp:hidden=16", "lr": 0.1, "workers": 1, "progress": False}
    runs = [coterie.run("fedavg", data, seed=seed, **how) for seed in range(21)]  # type: ignore[arg-type]
    found = [ClientScores.of(run.clients) for run in runs]
    train = runs[0].summary.train_samples
    assert train == sum(len(client.train) for client in data)
    pairs = list(itertools.combinations(found, 2))
    assert len(pairs) > 200
    for one in found:
        one.constants = {}
    called = [judge(one, {"fedavg": other}, train)[0].answer != "undecided" for one, other in pairs]
    assert sum(called) <= LEVEL * len(pairs)


def test_terminal_and_notebook_say_what_the_report_says(tmp_path: Path) -> None:
    from coterie_views.report.page import make_report

    how = {"scenario": "digits-permuted", "clients": 8, "rounds": 12, "workers": 1}
    runs = [coterie.run(name, out=tmp_path / name, **how) for name in ("fedavg", "ifca:k=4")]  # type: ignore[arg-type]
    own, base = (ClientScores.of(run.clients) for run in runs[::-1])
    text = verdict(judge(own, {"fedavg": base}, runs[1].summary.train_samples))
    assert text.startswith("Was it worth it? Yes: better than fedavg, accuracy +")
    assert verdicts(runs)[0] == f"ifca:k=4: {text}"
    assert runs[1].path is not None
    watched = WatchedRun(runs[1].path, "ifca")
    watched.poll(None)
    assert watched.detail(None, 0)["verdict"] == text
    for page in (make_report(runs[1].path), runs[1]._repr_html_()):
        assert text in unescape(page)


def test_a_constant_answer_is_each_clients_own() -> None:
    y = torch.tensor([0, 0, 1, 1, 1, 2, 1, 1, 0, 0])
    made = coterie.Federation.from_tensors({"a": (torch.randn(10, 2), y)}, splits=(0.6, 0.0, 0.4))
    client = made["a"]
    usual = client.train.y.mode().values
    assert constant_score(client, None) == pytest.approx(float((client.test.y == usual).double().mean()))
    real = coterie.Federation.from_tensors({"a": (torch.randn(10, 2), y + 0.5)})["a"]
    error = real.test.y - real.train.y.mean()
    assert constant_score(real, None) == pytest.approx(float(error.square().mean()))
    assert constant_score(real, absolute_loss) == pytest.approx(float(error.abs().mean()))
    assert constant_score(real, huber_loss) is None
