"""A sweep tries what it says, judges by validation data alone, and goes on as if it had not been stopped."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

pytest.importorskip("optuna", reason="needs coterie[sweep]")

import coterie
from coterie.cli import main
from coterie.errors import ConfigError, CoterieError, RunError
from coterie.federation import ChangingFederation, on_validation
from coterie.runs.assemble import make_federation
from coterie.runs.config import make_config
from coterie_studies import sweeping as module
from coterie_studies.search_space import Choice, Range, make_space, parse_searches

SMALL = {"scenario": "xor", "clients": 4, "samples": 20, "rounds": 2}
SEARCH = {"method": "ifca:init=random,fedavg", "ifca.k": "2:3", "lr": "log:0.01:1"}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    place = tmp_path_factory.mktemp("sweep") / "all"
    return coterie.sweep(SEARCH, trials=5, seeds=2, out=place, workers=1, **SMALL)


def test_text_and_values_are_ranges_and_choices():
    space = make_space(parse_searches(["lr=log:0.001:1", "epochs=1:5", "batch_size=10,full", "momentum=0.0:0.9"]), {})
    assert space.methods == ("fedavg",)
    assert space.searched == {
        "lr": Range(0.001, 1.0, log=True),
        "epochs": Range(1, 5),
        "batch_size": Choice((10, "full")),
        "momentum": Range(0.0, 0.9),
    }
    same = {"epochs": (1, 5), "batch_size": [10, "full"], "momentum": (0.0, 0.9), "lr": "log:0.001:1"}
    assert make_space(same, {}).searched == space.searched
    both = make_space({"method": ["ifca:init=random", "cfl"], "ifca.k": "2:6", "lr": [0.1]}, {})
    assert both.keys_for("ifca:init=random") == ["ifca.k", "lr"]
    assert both.keys_for("cfl") == ["lr"]
    options = both.options({"method": "ifca:init=random", "ifca.k": 4, "lr": 0.1})
    assert options == {"method": "ifca:init=random,k=4", "lr": 0.1}


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({}, "nothing to search"),
        ({"rl": "0:1"}, "did you mean 'lr'"),
        ({"seed": "0:3"}, "the same in all trials"),
        ({"lr": "log:0:1"}, "both above 0"),
        ({"lr": "1:0.1"}, "low below high"),
        ({"lr": "log:0.1"}, "expected log:low:high"),
        ({"lr": [-1.0]}, "lr=-1.0: expected"),
        ({"lr": 3}, "expected text, a pair"),
        ({"momentum": "0.0:1.5"}, "momentum=1.5: expected"),
        ({"ifca.k": "2:6"}, "ifca is not among the methods"),
        ({"method": "ifca", "ifca.kk": "2:6"}, "ifca has no option 'kk'"),
        ({"method": "ifca", "ifca.k": "-1:6"}, "k=-1"),
        ({"method": "ifac"}, "did you mean 'ifca'"),
        ({"rounds": "1:3"}, "rounds=2 and a search over it"),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_is_trained(search, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        coterie.sweep(search, out=tmp_path / "new", **SMALL)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["lr", "=3", "lr="])
def test_a_search_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="expected key=what"):
        parse_searches([text])
    with pytest.raises(ConfigError, match="give it once"):
        parse_searches(["lr=1:2", "lr=1:3"])


def test_trials_are_runs_and_the_best_has_the_best_mean(swept):
    assert [trial.number for trial in swept.trials] == [1, 2, 3, 4, 5]
    assert {trial.parameters["method"] for trial in swept.trials} == {"ifca:init=random", "fedavg"}
    for trial in swept.trials:
        assert ("ifca.k" in trial.parameters) == (trial.parameters["method"] != "fedavg")
        folders = sorted((swept.path / f"trial-{trial.number:04d}").iterdir())
        assert [folder.name for folder in folders] == ["seed-0", "seed-1"]
        means = [json.loads((f / "summary.json").read_text())["metrics"]["accuracy"]["mean"] for f in folders]
        assert trial.value == pytest.approx(np.mean(means))
        config = json.loads((folders[0] / "config.json").read_text())
        assert (config["lr"], config["rounds"]) == (trial.parameters["lr"], 2)
    assert swept.best.value == max(trial.value for trial in swept.trials)
    assert swept.cells()[0][0] == str(swept.best.number)
    assert len(swept.to_pandas()) == 5
    assert coterie.run(**swept.best_options).summary.rounds == 2


def test_the_objective_is_on_validation_data_and_test_data_is_not_seen():
    federation, _ = make_federation(make_config(SMALL))
    for client, own in zip(federation, on_validation(federation, 0), strict=True):
        assert own.test is client.validation
        assert own.train is client.train
    x, y = np.arange(20, dtype=np.float32)[:, None], np.arange(20) % 2
    bare = coterie.Federation.from_tensors({"a": {"train": (x, y), "test": (x + 100, y)}}, splits=(1, 0, 0))
    own = on_validation(bare, 0)["a"]
    seen = [*own.train.x.flatten().tolist(), *own.test.x.flatten().tolist()]
    assert sorted(seen) == x.flatten().tolist()
    assert (len(own.train), len(own.test), len(bare["a"].train)) == (16, 4, 20)


def test_test_data_is_not_seen_in_any_phase_of_a_federation_that_changes():
    federation, _ = make_federation(make_config({"scenario": "digits-drift", "clients": 4, "samples": 20}))
    chosen_by = on_validation(federation, 0)
    assert isinstance(federation, ChangingFederation)
    assert isinstance(chosen_by, ChangingFederation)
    assert list(chosen_by.phases) == [1, 31, 61, 91]
    for start, phase in federation.phases.items():
        for client in phase:
            assert chosen_by.at(start)[client.id].test is client.validation
    first = federation.ids[0]
    assert chosen_by.at(1)[first] is chosen_by.at(61)[first]


def test_a_stopped_sweep_goes_on_as_if_it_had_not_been(swept, tmp_path):
    place, told = tmp_path / "half", []
    coterie.sweep(SEARCH, trials=2, seeds=2, out=place, workers=1, **SMALL)
    last = place / "trial-0003" / "seed-0"  # a run that was killed before the trial was over
    parameters = swept.trials[2].parameters
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "execute", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            coterie.sweep(SEARCH, trials=3, seeds=2, out=place, workers=1, **SMALL)
    assert json.loads((last / "config.json").read_text())["lr"] == parameters["lr"]
    again = coterie.sweep(SEARCH, trials=5, seeds=2, out=place, workers=1, say=told.append, **SMALL)
    assert told[0] == "2 trials are kept from before"
    assert [(t.parameters, t.value) for t in again.trials] == [(t.parameters, t.value) for t in swept.trials]
    with pytest.raises(RunError, match=r"holds a sweep with search lr='log:0.01:1.0', now it is 'log:0.1:1.0'"):
        coterie.sweep(SEARCH | {"lr": "log:0.1:1"}, seeds=2, out=place, **SMALL)
    with pytest.raises(RunError, match="holds a sweep with rounds=2, now it is 3"):
        coterie.sweep(SEARCH, seeds=2, out=place, **(SMALL | {"rounds": 3}))


def test_a_small_space_ends_early_and_failed_trials_are_told(tmp_path):
    told = []
    found = coterie.sweep(
        {"method": "fedavg,flt:case=1,clusters=2"}, trials=9, out=tmp_path / "few", say=told.append, workers=1, **SMALL
    )
    assert told[-1] == "all of the space is tried after 2 trials"
    assert "clusters goes with case=2" in next(trial.problem for trial in found.trials if trial.value is None)
    assert found.cells()[-1][1] == "failed"
    assert found.best.parameters == {"method": "fedavg"}
    for wrong in ({"objective": "acuracy"}, {"objective": "auc"}):
        with pytest.raises(CoterieError, match="no metric of these runs"):
            coterie.sweep({"lr": [0.1]}, out=tmp_path / "new", **SMALL, **wrong)
    assert not (tmp_path / "new").exists()


def test_the_command_prints_the_trials_and_a_command_that_runs(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [word for key, value in SMALL.items() for word in (f"--{key}", str(value))]
    main(["sweep", "--search", "lr=0.1,0.2", "--search", "ifca.k=2:3", "--method", "ifca:init=random", "--trials", "2",
          "--workers", "1", "--out", "found", *given])  # fmt: skip
    shown = capfd.readouterr()
    assert "trial 2: " in shown.err
    best = shown.out.splitlines()[-1].removeprefix("best: ")
    assert best.startswith(
        "coterie run --scenario xor --clients 4 --samples 20 --rounds 2 --method ifca:init=random,k="
    )
    main([*shlex.split(best)[1:], "--out", "best", "--quiet"])
    assert json.loads((tmp_path / "best" / "summary.json").read_text())["rounds"] == 2
    assert len(json.loads((tmp_path / "found" / "sweep.json").read_text())["trials"]) == 2


def test_python_searches_on_a_federation_of_its_own(tmp_path):
    draws = np.random.default_rng(0)
    data = {
        name: (draws.normal(size=(20, 3)).astype(np.float32), draws.normal(size=20).astype(np.float32)) for name in "ab"
    }
    federation = coterie.Federation.from_tensors(data)
    found = coterie.sweep({"lr": [0.01, 0.02]}, federation, trials=2, rounds=1, out=tmp_path / "own", workers=1)
    assert found.objective == "loss"
    assert found.best.value == min(trial.value for trial in found.trials)
    assert found.best_command == f"coterie.run(…, rounds=1, method='fedavg', lr={found.best.parameters['lr']})"
    assert str(found).splitlines()[-1] == f"best: {found.best_command}"
