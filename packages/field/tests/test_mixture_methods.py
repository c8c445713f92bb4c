"""FedEM, FedRC and FedSoft: every step by hand, and what must hold of all of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.engines.local import LocalEngine
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.methods import Server, make_method
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule
from coterie_field.fedem import heaviest
from coterie_field.mixture_tasks import SMALLEST, label_counts, mixture_loss, rarity, responsibilities
from coterie_field.soft_tasks import importance, mean_centre

METHODS = ["fedem:components=2", "fedrc:components=2", "fedsoft:clusters=2"]
LR = 0.05


def slopes() -> Federation:
    """Three clients of y = a x without noise: slopes 2, 2 and −1, of 4, 2 and 3 samples."""
    points = {"a": ([1.0, 2, 3, -1], 2.0), "b": ([0.5, -2], 2.0), "c": ([1.0, -1, 2], -1.0)}
    clients = []
    for name, (x, slope) in points.items():
        inputs = torch.tensor(x)[:, None]
        split = Split(inputs, slope * inputs[:, 0])
        clients.append(Client(name, split, Split(inputs[:0], split.y[:0]), split))
    return Federation(clients)


def line(seed: int) -> nn.Module:
    torch.manual_seed(seed % 2**31)
    return nn.Sequential(nn.Linear(1, 1, bias=False))


def server_of(federation: Federation, module: Any = line, **training: Any) -> tuple[Server, LocalEngine]:
    engine = LocalEngine(federation, module, precision="float64")
    how = Training(**{"lr": LR, "steps": 1, "batch_size": None} | training)
    return Server(engine, make_schedule("constant", how, 5), 3, 5), engine


def test_the_e_step_by_hand() -> None:
    losses = torch.tensor([[0.0, math.log(3)], [math.log(2), 0.0]]).double()
    equal = torch.tensor([0.5, 0.5]).double()
    q = responsibilities(losses, equal)
    assert q.tolist() == [pytest.approx([3 / 4, 1 / 4]), pytest.approx([1 / 3, 2 / 3])]
    assert q.mean(0).tolist() == pytest.approx([13 / 24, 11 / 24])
    assert mixture_loss(losses, equal) == pytest.approx(-(math.log(2 / 3) + math.log(3 / 4)) / 2)
    uneven = responsibilities(losses, torch.tensor([0.2, 0.8]).double())
    assert uneven.tolist() == [pytest.approx([3 / 7, 4 / 7]), pytest.approx([1 / 9, 8 / 9])]


def test_models_that_are_no_numbers_have_no_part() -> None:
    losses = torch.tensor([[1.0, torch.inf], [torch.inf, torch.inf]]).double()
    q = responsibilities(losses, torch.tensor([0.5, 0.5]).double())
    assert q.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_more_steps_of_em_never_raise_the_loss_of_the_mixture() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        losses = 4 * torch.rand(15, 3, generator=generator).double()
        weights = torch.full((3,), 1 / 3).double()
        before = math.inf
        for _ in range(10):
            now = mixture_loss(losses, weights)
            assert now <= before + 1e-12
            before, weights = now, responsibilities(losses, weights).mean(0)


def em_round_by_hand(
    models: list[float], weights: dict[str, list[float]], federation: Federation
) -> tuple[list[float], dict[str, list[float]]]:
    """The paper's round in plain arithmetic: squared error, one full-batch step."""
    after, means, total = [0.0, 0.0], {}, sum(len(client.train) for client in federation)
    for client in federation:
        x, y = client.train.x[:, 0].double().numpy(), client.train.y.double().numpy()
        likely = np.array([w * np.exp(-((m * x - y) ** 2)) for m, w in zip(models, weights[client.id], strict=True)])
        q = likely / likely.sum(0)
        means[client.id] = q.mean(1).tolist()
        for m, model in enumerate(models):
            gradient = float((q[m] * 2 * (model * x - y) * x).sum()) / len(x)
            after[m] += len(x) / total * (model - LR * gradient)
    return after, means


def test_two_rounds_of_fedem_by_hand() -> None:
    federation = slopes()
    server, _ = server_of(federation)
    method = make_method("fedem:components=2")
    state = method.start(server)
    models = state.models[:, 0].tolist()
    assert models[0] != models[1]
    weights = {client: [0.5, 0.5] for client in federation.ids}
    for t in (1, 2):
        models, weights = em_round_by_hand(models, weights, federation)
        state, info = method.round(state, t, server)
        assert state.models[:, 0].tolist() == pytest.approx(models, abs=1e-7)  # weights are sent in float32
        assert {client: list(own) for client, own in state.weights.items()} == {
            client: pytest.approx(own, abs=1e-6) for client, own in weights.items()
        }
    assert [cluster.members for cluster in info.clusters] == [
        sum(heaviest(own) == m for own in weights.values()) for m in range(2)
    ]


def test_fedem_finds_the_two_slopes_and_who_has_which() -> None:
    federation = slopes()
    server, _ = server_of(federation, steps=10)
    method = make_method("fedem:components=2")
    state = method.start(server)
    for t in range(1, 60):
        state, _ = method.round(state, t, server)
    assert sorted(state.models[:, 0].tolist()) == pytest.approx([-1, 2], abs=0.02)
    assignment = method.assignment(state, server)
    assert sorted(map(list, assignment.members)) == [["a", "b"], ["c"]]
    assert all(abs(sum(served.mixture.values()) - 1) < 1e-12 for served in assignment.served())


def test_the_shares_of_labels_by_hand() -> None:
    y = torch.tensor([0, 1, 1])
    q = torch.tensor([[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]]).double()
    counts = label_counts(y, q)
    assert counts.tolist() == [[1.0, 0.75], [0.0, 1.25]]
    shares = counts / counts.sum(1, keepdim=True)  # 4/7 and 3/7; 0 and 1
    found = rarity(y, shares).exp()
    assert found.tolist() == [
        pytest.approx([4 / 7, SMALLEST]),
        pytest.approx([3 / 7, 1.0]),
        pytest.approx([3 / 7, 1.0]),
    ]
    assert rarity(torch.tensor([2]), shares).exp().tolist() == [pytest.approx([SMALLEST, SMALLEST])]  # not seen yet


def test_a_label_that_a_model_sees_often_is_no_argument_for_it() -> None:
    """Both models fit a sample of label 0 alike, and model 0 has nine tenths of its samples from that label."""
    losses, equal = torch.zeros(1, 2).double(), torch.tensor([0.5, 0.5]).double()
    shares = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    q = responsibilities(losses + rarity(torch.tensor([0]), shares), equal)
    assert q.tolist() == [pytest.approx([5 / 14, 9 / 14])]  # 1/0.9 against 1/0.5


def classes(seed: int) -> nn.Module:
    torch.manual_seed(seed % 2**31)
    return nn.Sequential(nn.Linear(2, 3))


def labelled(clients: int = 4) -> Federation:
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(clients):
        x, y = torch.randn(6 + i, 2, generator=generator), torch.randint(3, (6 + i,), generator=generator)
        made.append(Client(f"c{i}", Split(x, y), Split(x[:0], y[:0]), Split(x, y)))
    return Federation(made)


def test_clients_of_fedrc_report_their_labels_and_the_server_averages_them() -> None:
    federation = labelled()
    server, _ = server_of(federation, classes)
    method = make_method("fedrc:components=2")
    state = method.start(server)
    plain, _ = make_method("fedem:components=2").round(state, 1, server)
    state, _ = method.round(state, 1, server)
    assert torch.allclose(state.models, plain.models, atol=1e-12)  # before the first report labels count for nothing
    for client in federation:
        counts = torch.bincount(client.train.y, minlength=int(client.train.y.max()) + 1)
        assert state.counts[client.id].sum(0).tolist() == pytest.approx(counts.tolist(), abs=1e-5)
    total = sum(torch.nn.functional.pad(c, (0, 3 - c.shape[1])) for c in state.counts.values())
    assert isinstance(total, Tensor)
    assert torch.allclose(method.labels(state), total / total.sum(1, keepdim=True), atol=1e-6)
    after, _ = method.round(state, 2, server)
    other, _ = make_method("fedem:components=2").round(state, 2, server)
    assert not torch.equal(after.models, other.models)


def test_a_client_cannot_report_more_labels_than_it_has_samples() -> None:
    from coterie.tasks import Reply
    from coterie_field.fedem import _bounded

    told = Reply("a", 6, values={"counts": torch.tensor([[600.0, 0.0], [0.0, 600.0]])})
    assert _bounded(told).tolist() == [[3.0, 0.0], [0.0, 3.0]]
    honest = Reply("a", 6, values={"counts": torch.tensor([[1.0, 2.0], [3.0, 0.0]])})
    assert _bounded(honest).tolist() == [[1.0, 2.0], [3.0, 0.0]]


def test_fedrc_needs_labels() -> None:
    server, _ = server_of(slopes())
    method = make_method("fedrc:components=2")
    with pytest.raises(ConfigError, match="use fedem in place of fedrc"):
        method.round(method.start(server), 1, server)


@pytest.mark.parametrize("method", METHODS)
def test_an_optimiser_that_is_kept_is_refused(method: str) -> None:
    server, _ = server_of(slopes(), optimizer="adam", keep_optimizer=True)
    with pytest.raises(ConfigError, match="keep_optimizer"):
        make_method(method).start(server)


def test_importance_weights_by_hand() -> None:
    losses = torch.tensor([[1.0, 2], [3, 1], [0, 5], [2, 9]]).double()
    assert importance(losses, 0.01) == [0.75, 0.25]
    assert importance(losses[[0, 2]], 0.25) == pytest.approx([0.8, 0.2])  # 1 and 1/4, to sum to one
    assert importance(torch.ones(3, 2).double(), 0.5) == pytest.approx([2 / 3, 1 / 3])  # ties go to the first


def test_two_rounds_of_fedsoft_by_hand() -> None:
    """Estimates in the first round alone; λ/2 Σ u (w − c)² has the gradient λ (w − Σ u c) = λ Σ u (w − c)."""
    federation, lam = slopes(), 0.4
    server, engine = server_of(federation)
    method = make_method(f"fedsoft:clusters=2,proximal={lam},interval=2,smoothing=0.01")
    state = method.start(server)
    centres = state.centres[:, 0].tolist()
    own = dict.fromkeys(federation.ids, float(server.initial_model()[0]))
    weights: dict[str, list[float]] = {}
    for t in (1, 2):
        for client in federation:
            x, y = client.train.x[:, 0].double().numpy(), client.train.y.double().numpy()
            if t == 1:
                best = np.argmin([(c * x - y) ** 2 for c in centres], axis=0)
                shares = np.maximum([np.mean(best == s) for s in range(2)], 0.01)
                weights[client.id] = (shares / shares.sum()).tolist()
            w = own[client.id]
            pull = lam * sum(u * (w - c) for u, c in zip(weights[client.id], centres, strict=True))
            own[client.id] = w - LR * (float((2 * (w * x - y) * x).mean()) + pull)
        shares_of = {c.id: [len(c.train) * u for u in weights[c.id]] for c in federation}
        centres = [sum(shares_of[c][s] * own[c] for c in own) / sum(shares_of[c][s] for c in own) for s in range(2)]
        state, _ = method.round(state, t, server)
        assert state.centres[:, 0].tolist() == pytest.approx(centres, abs=1e-6)
        kept = {client: float(found["private"][0]) for client, found in engine.client_states().items()}
        assert kept == {client: pytest.approx(w, abs=1e-6) for client, w in own.items()}
    assert {client: list(u) for client, u in state.weights.items()} == {
        client: pytest.approx(u, abs=1e-6) for client, u in weights.items()
    }


def test_between_two_estimates_fedsoft_sends_one_model() -> None:
    result = coterie.run("fedsoft:clusters=3,interval=3", labelled(), model=classes(0), rounds=4, workers=1)
    size = result.layout.size
    every, between = 4 * (3 * 4 * size + 8), 4 * (4 * size + 4 + 8)  # k centres, or their mean and a weight; a seed
    assert [record.bytes.down for record in result.history] == [every, between, between, every]


def test_the_mean_of_centres() -> None:
    centres = torch.tensor([[1.0, 0.0], [0.0, 4.0]])
    assert mean_centre(centres, [0.5, 0.5]).tolist() == [0.5, 2.0]
    assert mean_centre(centres, [0.25, 0.25]).tolist() == [0.5, 2.0]  # rounding in float32 makes them sum to less


@pytest.mark.parametrize("method", METHODS)
def test_results_do_not_depend_on_workers_or_on_a_kill(method: str, tmp_path: Any) -> None:
    options: dict[str, Any] = {"model": "mlp:hidden=3", "rounds": 4, "participation": 0.75, "lr": 0.3}

    class Kill:
        def on_start(self, run: Any, done: int) -> None: ...
        def on_event(self, t: int, event: Any) -> None: ...
        def on_end(self, result: Any) -> None: ...
        def on_round(self, record: Any) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    whole = coterie.run(method, labelled(8), workers=1, **options)
    shared = coterie.run(method, labelled(8), workers=2, **options)
    with pytest.raises(KeyboardInterrupt):
        coterie.run(method, labelled(8), workers=1, out=tmp_path / "run", callbacks=[Kill()], **options)
    resumed = coterie.resume(tmp_path / "run", federation=labelled(8), workers=1)
    for other in (shared, resumed):
        assert other.clients == whole.clients
        assert other.summary.bytes == whole.summary.bytes
        assert all(torch.equal(other.files[name], model) for name, model in whole.files.items())
        assert [record.mixtures for record in other.history] == [record.mixtures for record in whole.history]


def oracle_client(i: int) -> Client:
    """4 + 2 i samples of two inputs and three labels, by formula."""
    n = 4 + 2 * i
    x = torch.sin(torch.arange(2.0 * n) * (i + 1) + i).view(n, 2)
    split = Split(x, (torch.arange(n) * (i + 1) + i) % 3)
    return Client(f"c{i}", split, Split(x[:0], split.y[:0]), split)


ORACLE = {
    "fedem": (
        [0.923077, 0.635464, -0.389836, -0.927135, -0.603032, 0.125644, 0.091484, -0.277489, 0.386005],
        [-1.158837, -0.492663, 0.319654, 1.037905, 0.886755, -0.384216, -0.170712, 0.057048, -0.086335],
        [[0.674728, 0.325272], [0.023416, 0.976584], [0.119568, 0.880432]],
    ),
    "fedrc": (
        [0.918832, 0.629583, -0.381704, -0.923702, -0.606918, 0.12809, 0.077301, -0.266466, 0.389166],
        [-1.15983, -0.487478, 0.316588, 1.032175, 0.890814, -0.383671, -0.16177, 0.04633, -0.08456],
        [[0.654323, 0.345678], [0.028399, 0.971601], [0.128362, 0.871638]],
    ),
}
"""Two linear models and three clients' weights after three rounds of the authors' own code (full batch, lr 0.5)."""


@pytest.mark.parametrize("name", sorted(ORACLE))
def test_three_rounds_are_those_of_the_authors_code(name: str) -> None:
    server, _ = server_of(Federation([oracle_client(i) for i in range(3)]), classes, lr=0.5)
    method = make_method(f"{name}:components=2")
    bias = torch.tensor([0.1, -0.2, 0.3])
    starts = [torch.cat([torch.cos(torch.arange(6.0) + 3 * m), bias * (1 - 2 * m)]) for m in (0, 1)]
    state = dataclasses.replace(method.start(server), models=torch.stack(starts).double())
    for t in (1, 2, 3):
        state, _ = method.round(state, t, server)
    first, second, weights = ORACLE[name]
    assert state.models.tolist() == [pytest.approx(first, abs=2e-6), pytest.approx(second, abs=2e-6)]
    assert [list(own) for own in state.weights.values()] == [pytest.approx(own, abs=2e-6) for own in weights]
