"""Runs with secure sums and with noise: what they give, what they cost, and what they refuse."""

from __future__ import annotations

import random
from io import StringIO

import pytest
import torch
from rich.console import Console

import coterie
from coterie.cli.progress import show_results
from coterie.errors import ConfigError
from coterie.methods.base import make_method, method_names
from coterie.methods.needs import needs_of
from coterie.privacy.accounting import epsilon
from coterie.privacy.noisy_sum import discrete_gaussian
from coterie.privacy.user_level import UserPrivacy
from coterie.snapshot import load_tensors
from coterie_views.report.reading import read_run
from coterie_views.report.words import run_words

COVERED = ("models/cluster-*.safetensors",)
"""The files of a run folder that ε covers: sums with noise, and what is computed from them alone."""
OUTSIDE = (
    *("config.json", "environment.json", "model.json", "table.json", "history.jsonl", "checkpoint*.safetensors"),
    *("clients.json", "summary.json", "explanation.json"),
)
"""Those with exact numbers about clients' data (metrics, losses, choices, scales, a fingerprint), which are not to be
published where ε is to hold. A run with noise writes no others."""

OPTIONS = {"scenario": "digits-permuted", "clients": 8, "groups": 2, "rounds": 3, "seed": 3, "workers": 1,
           "model": "mlp:hidden=8"}  # fmt: skip


@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "fedprox:mu=0.1",
        "ifca:k=2,init=random",
        "cfl:compare=projection(64)",
        "groups:of={'client-0':'a','client-1':'b','client-2':'a','client-3':'b'}",
        "clove",
        "ditto",
        "fedcuau:clusters=2",
        "fedcuau:clusters=2,measure=update",
        "fedcuau:clusters=3,base=fedper,specific=hidden",
    ],
)
def test_secure_sums_give_the_plain_run_up_to_rounding_at_a_stated_price(method):
    options = OPTIONS | {"seed": 1, "secure_minimum": 2}
    plain, secure = (coterie.run(method, secure_sums=secure, **options) for secure in (False, True))
    assert not [fault for record in secure.history for fault in record.faults]
    assert secure.clusters == plain.clusters
    for ours, theirs in zip(secure.models, plain.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert secure.summary.bytes.up > plain.summary.bytes.up
    assert secure.summary.bytes.down > plain.summary.bytes.down


def test_a_cluster_below_the_minimum_is_not_opened():
    result = coterie.run("fedavg", secure_sums=True, secure_minimum=9, **OPTIONS)
    assert len(result.history[0].faults) == 8
    assert "stay closed" in result.history[0].faults[0].reason
    start = coterie.run("fedavg", secure_sums=True, secure_minimum=9, **OPTIONS | {"rounds": 1})
    assert torch.equal(result.models[0], start.models[0])  # nothing was learned


def test_centroids_do_not_go_out_beside_secure_sums():
    with pytest.raises(ConfigError, match="centroids of the clients' data would go out in clear"):
        coterie.run("pca-kmeans-hc", secure_sums=True, **OPTIONS)


@pytest.mark.parametrize(
    "method",
    [
        "cfl",
        "fedsem:clusters=2",
        "fedsoft",
        "oneshot:k=2,warmup_rounds=1",
        "flhc:warmup_rounds=1",
    ],
)
def test_methods_that_look_at_single_updates_are_refused(method):
    with pytest.raises(ConfigError, match="single updates"):
        coterie.run(method, secure_sums=True, **OPTIONS)


@pytest.mark.parametrize("method", ["fedem:components=2", "fedrc:components=2"])
def test_mixtures_are_the_same_on_secure_sums(method):
    secure, plain = (coterie.run(method, secure_sums=sums, **OPTIONS) for sums in (True, False))
    for ours, theirs in zip(secure.models, plain.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_run_with_noise_tells_its_epsilon():
    result = coterie.run("fedavg:weighting=uniform", dp_noise=0.5, dp_clip=0.5, participation=0.5, **OPTIONS)
    assert result.summary.epsilon == pytest.approx(epsilon(0.5, 0.5, 3, 1e-5), abs=1e-5)
    assert result.summary.delta == 1e-5
    choosing = coterie.run("ifca:k=2", dp_noise=0.5, **OPTIONS)
    assert choosing.summary.epsilon == pytest.approx(epsilon(0.5 / 2**0.5, 1.0, 3, 1e-5), abs=1e-5)
    assert coterie.run("fedavg", **OPTIONS).summary.epsilon is None


def test_epsilon_is_in_every_round_in_the_progress_line_the_table_and_the_report(tmp_path, capsys):
    quick = OPTIONS | {"rounds": 2, "out": tmp_path / "run", "progress": True}
    result = coterie.run("fedavg:weighting=uniform", dp_noise=1.0, **quick)
    expected = [epsilon(1.0, 1.0, t, 1e-5) for t in (1, 2)]
    assert [record.epsilon for record in result.history] == pytest.approx(expected, abs=1e-5)
    line = capsys.readouterr().err
    assert f"ε {expected[0]:.3g}" in line
    assert f"ε {expected[1]:.3g} at δ = 1e-05" in line
    assert f"ε {expected[1]:.3g} at δ = 1e-05" in result._repr_html_()
    stream = StringIO()
    show_results([result], None, Console(file=stream, width=200))
    assert f"ε {expected[1]:.3g} at δ = 1e-05" in stream.getvalue()
    assert f"at most ε = {expected[1]:.3g} (at δ = 1e-05)" in run_words(read_run(tmp_path / "run"))
    assert "ε" not in run_words(read_run(coterie.run("fedavg", **quick | {"out": tmp_path / "plain"}).path))


def test_under_noise_all_of_ifcas_models_are_given_out_chosen_or_not():
    result = coterie.run("ifca:k=4", dp_noise=1.0, **OPTIONS | {"clients": 6, "seed": 5})
    assert len(result.models) == 4
    assert sorted(client for own in result.clusters for client in own) == sorted(c.client for c in result.clients)
    assert any(not own for own in result.clusters)  # which is only known to the records


@pytest.fixture
def seeded_system(monkeypatch):
    """The system's source of randomness, by a seed."""
    monkeypatch.setattr("coterie.privacy.keys.secrets.token_bytes", random.Random(0).randbytes)


def test_noise_has_the_size_that_the_account_assumes(seeded_system):
    privacy = UserPrivacy(noise=2.0, clip=0.5, delta=1e-5, rate=1.0)
    drawn = privacy.blurred(torch.zeros(20_000, dtype=torch.float64))
    assert float(drawn.std()) == pytest.approx(1.0, rel=0.03)
    assert not torch.equal(drawn, privacy.blurred(torch.zeros(20_000, dtype=torch.float64)))


def test_a_number_of_clients_has_noise_as_if_each_were_a_one(seeded_system):
    privacy = UserPrivacy(noise=2.0, clip=0.5, delta=1e-5, rate=1.0, choices=True)
    drawn = torch.tensor([privacy.blurred_count(100) for _ in range(5_000)])
    assert float(drawn.std()) == pytest.approx(2.0, rel=0.05)
    assert float(drawn.mean()) == pytest.approx(100, abs=0.15)
    assert min(privacy.blurred_count(0) for _ in range(100)) == 1.0


def test_with_noise_no_update_is_longer_than_the_clip():
    quiet = coterie.run("fedavg:weighting=uniform", dp_noise=1e-9, dp_clip=1e-3, **OPTIONS | {"rounds": 1})
    assert quiet.history[0].clusters[0].mean_norm <= 1e-3 * 1.001
    assert quiet.history[0].clusters[0].max_norm == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("method", "extra", "words"),
    [
        ("fedavg", {}, "weighting=uniform"),
        ("cfl", {}, "cfl: it looks at single updates"),
        ("fedcuau", {}, "replies of single clients to Divergence"),
        ("ditto:weighting=uniform", {}, "a model of their own"),
        ("fedper:weighting=uniform", {}, "a model of their own"),
        ("fedbabu:weighting=uniform", {}, "would move the head"),
        ("groups:of={'client-0':'a'},weighting=uniform", {}, "exact losses"),
        ("fedavg:weighting=uniform", {"keep_optimizer": True, "optimizer": "momentum"}, "optimisers keep gradients"),
        ("ifca:k=auto", {}, "exact losses"),
        ("ifca:k=2,restarts=2", {}, "exact losses"),
        ("ifca:k=2,clustered=last", {}, "shared layers"),
        ("ifca:k=2,weighting=samples", {}, "weighting=uniform"),
        ("fedavg:weighting=uniform", {"aggregate": "median"}, "aggregate='median'"),
        ("fedavg:weighting=uniform", {"patience": 2, "validation": 0.2}, "exact metrics"),
    ],
)
def test_combinations_whose_epsilon_would_not_be_true_are_refused(method, extra, words):
    with pytest.raises(ConfigError, match=words):
        coterie.run(method, dp_noise=1.0, **OPTIONS | extra)


OURS = [
    name
    for name in sorted(method_names())
    if type(make_method(name)).__module__.startswith(("coterie.", "coterie_field."))
]


@pytest.mark.parametrize("name", OURS)
def test_every_method_declares_its_needs_and_three_of_them_are_covered_by_noise(name):
    needs = needs_of(make_method(name))
    assert needs is not None
    assert (needs.beyond_noise() is None) == (name in {"fedavg", "fedprox", "ifca"})


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg:weighting=uniform", {}),
        ("fedavg:weighting=uniform", {"participation": 0.5, "server_optimizer": "adam:lr=0.1", "personalise": 1}),
        ("fedprox:weighting=uniform", {"secure_sums": True, "validation": 0.2}),
        ("ifca:k=2", {}),
        ("ifca:k=2,init=random,hide_choice=true", {"secure_sums": True}),
    ],
)
def test_every_file_of_a_run_with_noise_is_noised_or_listed_as_outside_of_epsilon(tmp_path, method, more):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        coterie.run(method, dp_noise=1.0, out=folder, **OPTIONS | more)
    if method.startswith("fedavg"):
        coterie.load(folders[0]).explain()
    for path in (path for path in folders[0].rglob("*") if path.is_file()):
        name = path.relative_to(folders[0])
        covered, outside = (any(name.match(pattern) for pattern in patterns) for patterns in (COVERED, OUTSIDE))
        assert covered != outside, name
        if covered and (folders[1] / name).exists():  # another draw in every number, with one seed
            one, two = (load_tensors(folder / name)[0] for folder in folders)
            assert all((one[key] != two[key]).float().mean() > 0.99 for key in one)


def test_noise_and_who_takes_part_come_from_the_systems_generator(monkeypatch):
    def refuse(*_):
        raise AssertionError("NumPy's generator")

    privacy = UserPrivacy(noise=1.0, clip=1.0, delta=1e-5, rate=0.5)
    monkeypatch.setattr("numpy.random.default_rng", refuse)
    monkeypatch.setattr("coterie.privacy.keys.secrets.token_bytes", lambda count: bytes(count))
    zeros = torch.zeros(100, dtype=torch.float64)
    assert torch.equal(privacy.blurred(zeros), privacy.blurred(zeros))  # where the system's bytes are the same
    assert privacy.blurred_count(50) == privacy.blurred_count(50)
    names = [str(i) for i in range(1000)]
    assert privacy.taking_part(names, 0.5) == privacy.taking_part(names, 0.5)
    assert 400 < len(privacy.taking_part(names, 0.5)) < 600
    assert discrete_gaussian(20.0, 100).tolist() == discrete_gaussian(20.0, 100).tolist()
