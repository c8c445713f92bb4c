"""IFCA with hidden choices: the arithmetic of the plain run, records that name nobody, and what stays closed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import coterie
from coterie.data.scenarios import find_scenario
from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.privacy.secure_sum import SecureClient
from coterie.privacy.sum_terms import Terms
from coterie.privacy.whole_numbers import quantiser_for
from coterie.runs.assemble import make_architecture, make_federation
from coterie.runs.config import make_config
from coterie.tasks import CountChoice, ScoreHidden, TrainHidden
from coterie.tasks.base import ClientContext
from coterie.trainers.base import Training

OPTIONS = {"scenario": "digits-permuted", "clients": 8, "groups": 2, "rounds": 5, "seed": 1, "workers": 1,
           "model": "mlp:hidden=8", "secure_sums": True, "secure_minimum": 2}  # fmt: skip
HIDDEN = "ifca:k=2,init=random,hide_choice=true"


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    return coterie.run(HIDDEN, out=tmp_path_factory.mktemp("hidden") / "run", **OPTIONS)


@pytest.fixture(scope="module")
def seen():
    return coterie.run("ifca:k=2,init=random", **OPTIONS)


def test_the_models_and_means_are_those_of_the_run_that_sees_choices(hidden, seen):
    for ours, theirs in zip(hidden.models, seen.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert hidden.summary.sizes == [len(own) for own in seen.clusters] == [4, 4]
    assert hidden.summary.accuracy.mean == pytest.approx(seen.summary.accuracy.mean, abs=1e-6)
    assert hidden.summary.loss.mean == pytest.approx(seen.summary.loss.mean, rel=1e-5)
    # One is of the models that were chosen, the other of those that training went through; guessing has log 10.
    assert seen.state.loss < hidden.state.loss < math.log(10)


def test_every_file_of_the_run_but_the_clients_own_states_says_sizes_only(hidden):
    assert hidden.clients == []
    assert hidden.summary.clusters == [[], []]
    assert hidden.summary.ari is None
    for record in hidden.history:
        assert not record.assignment
        assert sum(cluster.members for cluster in record.clusters) == 8
        assert all(cluster.train_loss is None and cluster.max_norm is None for cluster in record.clusters)
        assert record.accuracy.min is None
        assert record.accuracy.clients == 8
    told = [path for path in hidden.path.rglob("*") if path.suffix in {".json", ".jsonl", ".csv", ".txt"}]
    assert len(told) >= 3
    for path in told:
        assert "client-3" not in path.read_text(), path
    assert not hasattr(hidden.state, "choices")


def test_only_a_client_with_its_data_finds_its_model(hidden, seen):
    with pytest.raises(ConfigError, match="only the client knows"):
        hidden.model_of("client-3")
    loaded = coterie.load(hidden.path)
    assert loaded.summary.sizes == [4, 4]
    federation, _ = make_federation(make_config({"method": HIDDEN, **OPTIONS}))
    test = federation["client-3"].test
    mine = seen.record_of("client-3").cluster
    assert loaded.assign((test.x, test.y)) == {"newcomer": mine}
    assert loaded.predict(test.x[:4], cluster=mine).shape == (4,)


def test_its_price_is_counted(hidden, seen):
    up, down = (hidden.summary.bytes.up, hidden.summary.bytes.down)
    numbers = 8 * 5 * 4 * hidden.models[0].numel()
    assert up > seen.summary.bytes.up + numbers  # a second block from each client in each round
    assert down > seen.summary.bytes.down + numbers  # the models are sent for the choice and for the training


def test_a_model_that_few_chose_stays_closed_and_as_it_was():
    part, both, none = (coterie.run(HIDDEN, **OPTIONS | {"secure_minimum": n, "rounds": 1}) for n in (4, 2, 6))
    assert part.summary.sizes == both.summary.sizes == none.summary.sizes == [5, 3]
    assert [event.kind for event in part.history[0].events] == ["closed"]
    torch.testing.assert_close(part.models[0], both.models[0], rtol=1e-4, atol=1e-6)
    assert torch.equal(part.models[1], none.models[1])
    assert not torch.equal(part.models[1], both.models[1])
    assert not part.history[0].faults  # a fault would name who chose what


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (HIDDEN, {"secure_sums": False}, "secure_sums=True"),
        (HIDDEN, {"participation": 0.5}, "show single choices"),
        (HIDDEN, {"personalise": 1}, "one of the two"),
        ("ifca:k=auto,hide_choice=true", {}, "k=auto"),
        ("ifca:k=2,resend=settled(2),hide_choice=true", {}, "resend=settled"),
        ("ifca:k=2,weighting=samples,hide_choice=true", {}, "weighting=samples"),
        ("ifca:k=2,averaging=gradient,hide_choice=true", {}, "averaging=gradient"),
        ("ifca:k=2,init=k-means++,hide_choice=true", {}, "init=k-means"),
    ],
)
def test_what_would_show_a_choice_is_refused(method, options, words):
    with pytest.raises(ConfigError, match=words):
        coterie.run(method, **OPTIONS | options)


def test_restarts_and_shared_layers_are_those_of_the_run_that_sees_choices():
    ways = ["ifca:k=2,init=random,restarts=2,clustered=last" + more for more in ("", ",hide_choice=true")]
    seen, hidden = (coterie.run(way, **OPTIONS | {"rounds": 3}) for way in ways)
    assert sum(hidden.summary.sizes) == 8
    for ours, theirs in zip(hidden.models, seen.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_reply_has_zeros_but_for_the_chosen_model():
    federation = find_scenario("digits-iid").build(clients=2, samples=30, seed=1)
    engine = LocalEngine(federation, make_architecture("mlp:hidden=4", federation))
    models = torch.stack([engine.initial_model(seed) for seed in (1, 2, 3)])
    context = ClientContext(federation.clients[0], {})
    count = CountChoice(models, "choice 0")
    [reply], _ = count.perform([count], [context], engine.trainer)
    choice = int(context.state["choice 0"])
    assert reply.vector[:3].tolist() == [float(j == choice) for j in range(3)]
    losses, _ = engine.trainer.evaluate([context.client.train], models)
    assert choice == int(losses[0].argmin())
    assert float(reply.vector[3]) == pytest.approx(float(losses[0].min()))
    for opened in ((0, 1, 2), tuple({0, 1, 2} - {choice})):
        train = TrainHidden(models, Training(lr=0.1), 5, "choice 0", opened)
        [reply], _ = train.perform([train], [context], engine.trainer)
        blocks = reply.vector.view(3, -1)
        assert [bool(block.any()) for block in blocks] == [j == choice and j in opened for j in range(3)]
    score = ScoreHidden(models, "choice 0", "test")
    vector = score.answer(context, engine.trainer).vector
    _, accuracies = engine.trainer.evaluate([context.client.test], models)
    assert float(vector[1]) == pytest.approx(float(accuracies[0, choice]))
    assert vector[2:].tolist() == [1.0, 1.0]


def test_what_a_client_sends_of_its_choice_has_one_distribution_whatever_it_chose():
    """Under fresh keys, the masked words of one choice and of another are uniform, and nothing tells them apart."""
    quantiser = quantiser_for(1.0, 3, wide=True)
    words = {choice: [] for choice in (0, 1)}
    for _ in range(150):
        for choice, sent in words.items():
            clients = {number: SecureClient(number) for number in (1, 2, 3)}
            keys = {number: client.keys() for number, client in clients.items()}
            terms = Terms("sum", ("task",), keys, dict.fromkeys(keys, 1.0), 3, 2)
            dealt = {number: client.shares(terms) for number, client in clients.items()}
            for number, client in clients.items():
                others = {s: own for s, own in dealt.items() if s != number}
                boxes = {s: own.boxes[number] for s, own in others.items()}
                client.check(boxes, {s: own.commitments[number] for s, own in others.items()})
            confirmed = {number: client.confirmation() for number, client in clients.items()}
            vector = np.array([1.0 - choice, choice, 0.7])
            sent.append(clients[1].masked(quantiser.encode(vector), confirmed))
    first, second = (np.array(sent) / 2**32 for sent in words.values())
    for column in range(first.shape[1]):
        assert stats.kstest(first[:, column], "uniform").pvalue > 1e-4
        assert stats.ks_2samp(first[:, column], second[:, column]).pvalue > 1e-4
