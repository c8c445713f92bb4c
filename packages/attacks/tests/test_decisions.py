"""One hostile client of twenty in what forms clusters: the honest clients' partition stays as it is.

More seeds and their figures: docs/results/cfl-liars.json.
"""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch

from coterie.clustering import adjusted_rand_index
from coterie.models import build
from coterie.runs import make_config, make_federation
from coterie.tasks import Choose, Evaluate, Request, Train
from coterie.trainers import Training
from coterie_attacks.attacks import ATTACKS
from coterie_attacks.claims import BEST, WORST
from coterie_attacks.engine import HostileEngine
from coterie_attacks.frontier import attacked_run

OPTIONS = {"clients": 20, "rounds": 9, "method": "cfl", "model": "mlp:hidden=16", "workers": 1, "evaluate_every": 100}


@cache
def honest_run(scenario, samples, seed):
    options = OPTIONS | {"scenario": scenario, "samples": samples, "seed": seed}
    return attacked_run(make_config(options), "none", 0)


@pytest.mark.parametrize("attack", ["veto", "forced-split"])
@pytest.mark.parametrize(
    ("scenario", "samples", "clusters", "seed"),
    [
        ("digits:permuted(2)", None, 2, 0),
        ("digits:permuted(2)", None, 2, 1),
        ("digits:permuted(2)", 60, 2, 101),  # the liar is a part by itself in the candidate that reproduces best
        ("digits:none", None, 1, 0),
        ("digits:none", None, 1, 1),
    ],
)
def test_one_liar_neither_prevents_a_split_nor_forces_one(scenario, samples, clusters, seed, attack):
    expected = honest_run(scenario, samples, seed).cluster
    assert len(set(expected.values())) == clusters
    options = OPTIONS | {"scenario": scenario, "samples": samples, "seed": seed}
    found = attacked_run(make_config(options), attack, 1).cluster
    same = adjusted_rand_index([expected[client] for client in found], list(found.values()))
    assert len(found) == 19
    assert same == 1.0


@pytest.mark.parametrize(("groups", "attack"), [(2, "veto"), (1, "forced-split")])
def test_as_many_liars_as_are_expected_neither_prevent_a_split_nor_force_one(groups, attack):
    scenario = f"digits:permuted({groups})" if groups > 1 else "digits:none"
    options = OPTIONS | {"scenario": scenario, "seed": 0, "expect_hostile": 3}
    found = attacked_run(make_config(options), attack, 3).cluster
    expected = attacked_run(make_config(options), "none", 0).cluster
    assert len(set(expected.values())) == groups
    assert adjusted_rand_index([expected[client] for client in found], list(found.values())) == 1.0


def engine_with(attack, hostile):
    config = make_config(OPTIONS | {"scenario": "digits:none", "clients": 4, "samples": 30})
    federation, _ = make_federation(config)
    network = partial(build, "logistic", federation.input_shape, federation.classes, dtype=torch.float32)
    engine = HostileEngine(federation, lambda seed: network(seed=seed), attack=ATTACKS[attack], hostile=hostile)
    return engine, engine.initial_model(0)


def answers(engine, requests):
    return {reply.client: reply for block in engine.run(requests) for reply in block.replies}


def test_whoever_wants_to_seed_claims_that_only_its_own_model_fits():
    engine, model = engine_with("seeding", ["client-1"])
    trained = answers(engine, [Request("client-1", Train(model, Training(lr=0.1, steps=1), 0))])["client-1"]
    task = Evaluate(torch.stack([model, model + trained.vector]), "train")
    losses = {
        c: reply.values["loss"] for c, reply in answers(engine, [Request(c, task) for c in engine.clients]).items()
    }
    assert losses["client-1"] == [WORST, BEST]
    assert BEST < losses["client-0"][0] < WORST


def test_whoever_attacks_across_the_mean_claims_a_falling_loss():
    engine, model = engine_with("orthogonal", ["client-1"])
    asked = [Request(c, Train(model, Training(lr=0.1, steps=1), 0)) for c in engine.clients]
    first, second = (answers(engine, asked) for _ in range(2))
    assert (first["client-1"].values["loss"], second["client-1"].values["loss"]) == (1.0, 0.5)
    assert first["client-0"].values["loss"] == second["client-0"].values["loss"]


def test_hostile_clients_choose_one_cluster_and_send_one_vector():
    engine, model = engine_with("ipm", ["client-1", "client-2"])
    models = torch.stack([model, engine.initial_model(1)])
    found = answers(engine, [Request(c, Choose(models, Training(lr=0.1, steps=1), 0)) for c in engine.clients])
    first, second = found["client-1"], found["client-2"]
    assert first.group == second.group
    assert torch.equal(first.vector, second.vector)
    assert first.norm == pytest.approx(float(first.vector.norm()))
