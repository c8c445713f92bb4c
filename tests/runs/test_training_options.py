"""Optimisers, losses, class weights and augmentation as options of a run: both doors, resume, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import coterie
from coterie.cli.main import app
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.randomness import torch_generator
from coterie.runs.config import make_config
from coterie.runs.folder import RunFolder
from coterie.trainers.base import Training
from coterie.trainers.losses import binary_loss

RUN: dict[str, Any] = {"scenario": "digits-iid", "clients": 3, "samples": 24, "rounds": 2, "workers": 1}
EVERYTHING: dict[str, Any] = {
    "optimizer": "adamw:beta2=0.99",
    "keep_optimizer": True,
    "clip_gradient": 1.5,
    "class_weights": "balanced",
    "augment": "crop:1",
    "server_optimizer": "yogi:lr=0.05",
}


WEIGHTS = [1.0, 2.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0]


class Stop(BaseException):
    """Ends a run."""


class StopsAfter:
    """Ends a run after some rounds, as a kill would."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_start(self, run: Any, done: int) -> None: ...

    def on_event(self, t: int, event: Any) -> None: ...

    def on_round(self, record: Any) -> None:
        if record.round == self.rounds:
            raise Stop

    def on_end(self, result: Any) -> None: ...


def noisy(images: Tensor, generator: torch.Generator) -> Tensor:
    """An augmentation of the user's own."""
    return images + torch.randn(images.shape, generator=generator).to(images)


def vectors(result: Any) -> list[Tensor]:
    return [result.vector_of(client) for client in sorted(result.clusters[0])]


def two_classes(labels: int = 2) -> Federation:
    """Clients whose label says on which side of a line a point is."""
    generator = torch_generator(0)
    clients = []
    for name in "abc":
        x = torch.randn(40, 3, generator=generator)
        y = (x[:, 0] + x[:, 1] > 0).long() * (labels - 1)
        clients.append(Client(name, Split(x[:24], y[:24]), Split(x[24:30], y[24:30]), Split(x[30:], y[30:])))
    return Federation(clients, labels)


def test_defaults_of_the_optimisers_are_torchs() -> None:
    def how(**given: Any) -> Training:
        return make_config(given).training(Training(lr=0.1))

    assert how() == Training(lr=0.1)
    assert how(optimizer="momentum") == Training(lr=0.1, momentum=0.9)
    assert how(optimizer="momentum", momentum=0.5).momentum == 0.5
    assert how(optimizer="adam") == Training(lr=0.001, optimizer="adam")
    assert how(optimizer="adamw").weight_decay == 0.01
    given = how(optimizer="adamw:beta1=0.8,eps=1e-6", lr=0.3, weight_decay=0)
    assert (given.betas, given.eps, given.lr, given.weight_decay) == ((0.8, 0.999), 1e-6, 0.3, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": "adamm"}, "did you mean 'adam"),
        ({"optimizer": "adam:beta3=1"}, "no option 'beta3'"),
        ({"optimizer": "adam:eps=2"}, "below 1"),
        ({"optimizer": "sgd:lr=1"}, "options of the run"),
        ({"optimizer": "adam", "momentum": 0.5}, "goes with optimizer='momentum'"),
        ({"keep_optimizer": True}, "no state to keep"),
        ({"clip_gradient": 0}, "clip_gradient=0: expected number above 0"),
        ({"class_weights": "1,zero"}, "expected 'balanced'"),
        ({"loss": "huberr"}, "did you mean 'huber'"),
        ({"augment": "flop"}, "did you mean 'flip'"),
        ({"server_optimizer": "adan"}, "did you mean 'adam'"),
        ({"server_optimizer": "avgm:tau=1"}, "no option 'tau'"),
        ({"server_optimizer": "adam:lr=x"}, "expected a number above 0"),
    ],
)
def test_what_cannot_be_is_refused_before_any_data_is_touched(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_config(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": "mse"}, "the targets are labels"),
        ({"loss": "bce"}, "use it with one output and labels 0 and 1"),
        ({"class_weights": [1.0, 2.0]}, "has 2 numbers, the data has 10 classes"),
        ({"method": "local", "server_optimizer": "adam"}, "local averages no models"),
        ({"method": "ifca:clustered=last", "server_optimizer": "adam"}, "use clustered='all'"),
        ({"method": "ifca:averaging=gradient", "optimizer": "adam"}, "clients take no steps"),
        ({"scenario": "linear-mixture", "augment": "flip", "samples": None}, "goes with images"),
        ({"scenario": "linear-mixture", "class_weights": "balanced", "samples": None}, "goes with labels"),
        ({"scenario": "linear-mixture", "loss": "cross-entropy", "samples": None}, "the targets are real numbers"),
    ],
)
def test_what_does_not_go_with_the_data_or_the_method_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        coterie.run(**RUN | given)


def test_a_run_with_everything_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runs.loop.checkpoint_pause", lambda cost: 0.0)
    whole = coterie.run("fedavg", **RUN | EVERYTHING | {"rounds": 3})
    plain = coterie.run("fedavg", **RUN | {"rounds": 3})
    assert not torch.equal(vectors(whole)[0], vectors(plain)[0])
    # Another engine setting computes the same: the states go to the workers and come back.
    spread = coterie.run("fedavg", **RUN | EVERYTHING | {"rounds": 3, "workers": 2})
    assert torch.equal(vectors(whole)[0], vectors(spread)[0])
    for stop in (1, 2):
        folder = tmp_path / str(stop)
        with pytest.raises(Stop):
            coterie.run("fedavg", **RUN | EVERYTHING | {"rounds": 3}, out=folder, callbacks=[StopsAfter(stop)])
        kept = RunFolder(folder).checkpoint()
        assert kept is not None
        assert kept.round == stop
        assert kept.server.moments["0"].second is not None
        assert all("optimizer" in state for state in kept.client_states.values())
        assert torch.equal(vectors(coterie.resume(folder))[0], vectors(whole)[0])
    stored = json.loads((tmp_path / "1" / "config.json").read_text())
    assert {key: stored[key] for key in EVERYTHING} == EVERYTHING


def test_the_command_takes_the_same_options_from_a_file_and_gives_the_same(tmp_path: Path) -> None:
    given = RUN | {"clip_gradient": 1.5, "loss": "cross-entropy", "class_weights": WEIGHTS}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    (tmp_path / "run.toml").write_text("\n".join([*lines, 'method = "fedavg"']))
    flags = ["--optimizer", "adam", "--keep-optimizer", "--augment", "flip"]
    flags += ["--server-optimizer", "avgm", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["run", str(tmp_path / "run.toml"), *flags])
    assert done.exit_code == 0, done.output
    given |= {"optimizer": "adam", "keep_optimizer": True, "augment": "flip", "server_optimizer": "avgm"}
    same = coterie.run("fedavg", **given)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["metrics"]["loss"]["mean"] == pytest.approx(
        same.summary.metrics["loss"].mean, rel=1e-12
    )


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedper", "cfl", "ifca:k=2", "ifca:k=auto"])
@pytest.mark.parametrize("rule", ["adam:lr=0.05"])
def test_every_method_that_averages_takes_a_server_optimiser(method: str, rule: str) -> None:
    how = RUN | {"clients": 4, "rounds": 3}
    plain, stepped = coterie.run(method, **how), coterie.run(method, **how, server_optimizer=rule)
    assert not torch.equal(vectors(plain)[0], vectors(stepped)[0])
    assert all(torch.isfinite(vector).all() for vector in vectors(stepped))


@pytest.mark.parametrize(
    "method",
    [
        "fedsem:clusters=2",
        "oneshot:k=2,warmup_rounds=1",
        "fedcuau:clusters=2",
        "pca-kmeans-hc",
        "fedem",
        "fedsoft",
        "groups:of={'client-0':'a','client-1':'b'}",
        "flhc:warmup_rounds=1",
        "clove",
        "pacfl",
        "ditto",
    ],
)
def test_methods_with_fixed_clusters_take_one_too(method: str) -> None:
    how = RUN | {"clients": 4, "rounds": 3}
    plain, stepped = coterie.run(method, **how), coterie.run(method, **how, server_optimizer="avgm")
    assert not torch.equal(plain.models[0], stepped.models[0])


def test_one_logit_is_accepted_and_its_accuracy_counted(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 4, "lr": 0.5, "workers": 1}
    named = coterie.run("cfl", two_classes(), model="mlp:hidden=8", loss="bce", out=tmp_path / "bce", **how)
    assert named.model_of("a")(torch.zeros(1, 3)).shape == (1, 1)
    x, y = two_classes()["a"].test.x, two_classes()["a"].test.y
    right = ((named.model_of("a")(x)[:, 0] > 0).long() == y).float().mean()
    [row] = [row for row in named.clients if row.client == "a"]
    assert row.accuracy == pytest.approx(float(right))
    assert row.accuracy > 0.7
    # A module of the user's own, with a loss of the user's own.
    own = coterie.run("fedavg", two_classes(), model=nn.Linear(3, 1), loss=lambda o, y: binary_loss(o, y), **how)
    assert own.summary.metrics["accuracy"].mean > 0.7
    with pytest.raises(ConfigError, match="give the model one output a class"):
        coterie.run("fedavg", two_classes(), model=nn.Linear(3, 1), **how)


def test_a_loss_by_module_and_function_is_stored_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_loss_22.py").write_text(
        "from torch.nn import functional as F\n"
        "def smooth(outputs, targets):\n"
        "    return F.cross_entropy(outputs, targets, label_smoothing=0.2)\n"
    )
    monkeypatch.chdir(tmp_path)
    spec = "own_loss_22.py:smooth"
    with pytest.raises(Stop):
        coterie.run("fedavg", **RUN, loss=spec, out="run", callbacks=[StopsAfter(1)])
    plain = coterie.run("fedavg", **RUN)
    assert not torch.equal(vectors(coterie.resume("run"))[0], vectors(plain)[0])
    assert json.loads(Path("run/config.json").read_text())["loss"] == str(tmp_path / spec)


def test_an_augmentation_of_the_users_own_is_found_by_name() -> None:
    by_object = coterie.run("fedavg", **RUN, augment=noisy)
    by_name = coterie.run("fedavg", **RUN, augment=f"{__name__}:noisy")
    plain = coterie.run("fedavg", **RUN)
    assert torch.equal(vectors(by_object)[0], vectors(by_name)[0])
    assert not torch.equal(vectors(by_object)[0], vectors(plain)[0])
    with pytest.raises(ConfigError, match="define the function at the top of a module"):
        coterie.run("fedavg", **RUN, augment=lambda images, generator: images)
