"""CFL with very many clients: sketches decide as the half-updates themselves do, and small clusters never see one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.clustering.sketch import fold, sketch
from coterie.federation import Client, Federation, Split
from coterie.methods import cfl_check, cfl_rule, cfl_vectors
from coterie.methods.cfl_likeness import MANY, laid_end_to_end
from coterie.methods.cfl_vectors import SKETCH, sketch_width
from coterie.methods.tree import Branch, Tree
from coterie.tasks import HalfUpdates, SketchHalves

CLASSES, FEATURES = 4, 12


def federation(clients: int, groups: int, samples: int = 24, seed: int = 0) -> Federation:
    """Clients of a few Gaussian classes whose labels are permuted in every group but the first, in turn."""
    generator = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(CLASSES, FEATURES, generator=generator)
    found = []
    for i in range(clients):
        y = torch.arange(samples + 8) % CLASSES
        x = centres[y] + torch.randn(len(y), FEATURES, generator=generator)
        labels = (y + i % groups) % CLASSES
        parts = [Split(x[at], labels[at]) for at in (slice(8, None), slice(0, 4), slice(4, 8))]
        found.append(Client(f"c{i}", *parts))
    return Federation(found)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 40), nn.ReLU(), nn.Linear(40, CLASSES))


class Heard:
    """Which tasks were asked for."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()

    def on_start(self, run, done) -> None:  # type: ignore[no-untyped-def]
        inner = run.engine.run

        def watched(requests, reduce=None):  # type: ignore[no-untyped-def]
            if reduce is None:
                self.kinds.update(type(request.task) for request in requests)
            yield from inner(requests, reduce)

        run.engine.run = watched

    def on_event(self, t, event) -> None: ...  # type: ignore[no-untyped-def]
    def on_round(self, record) -> None: ...  # type: ignore[no-untyped-def]
    def on_end(self, result) -> None: ...  # type: ignore[no-untyped-def]


def run(method: str, fed: Federation, rounds: int = 6, **more):  # type: ignore[no-untyped-def]
    heard = Heard()
    options = {"lr": 0.2, "epochs": 2, "batch_size": None, "workers": 1, "seed": 3} | more
    result = coterie.run(method, federation=fed, model=network, rounds=rounds, callbacks=[heard], **options)
    return result, heard.kinds


def clusters_of(result) -> set[frozenset[str]]:  # type: ignore[no-untyped-def]
    return {frozenset(own) for own in result.clusters}


def groups_of(clients: int, groups: int) -> set[frozenset[str]]:
    return {frozenset(f"c{i}" for i in range(g, clients, groups)) for g in range(groups)}


def test_half_updates_are_sketched_in_large_clusters_only() -> None:
    assert sketch_width(MANY, 200_000) is None
    assert sketch_width(MANY + 1, 200_000) == SKETCH
    assert sketch_width(MANY + 1, SKETCH) is None  # they are no longer than a sketch
    assert sketch_width(20, 2**26) == SKETCH  # 10 GB of half-updates
    assert sketch_width(100_000, 200_000) == 256


@pytest.mark.parametrize("spiky", [False, True])
def test_the_error_of_a_folded_cosine_is_as_stated(spiky: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    base = torch.randn(1, 60_000, generator=generator)
    vectors = base + torch.randn(80, 60_000, generator=generator)
    if spiky:  # a hundred numbers hold half of every vector's square
        vectors[:, :100] *= 25
    unit = torch.nn.functional.normalize(vectors, dim=1)
    folded = torch.nn.functional.normalize(fold(vectors, SKETCH), dim=1)
    errors = (folded @ folded.T - unit @ unit.T)[~torch.eye(80, dtype=torch.bool)]
    assert float(errors.square().mean().sqrt()) < 1.5 / SKETCH**0.5
    assert float(errors.abs().max()) < 6 / SKETCH**0.5
    assert float(errors.abs().max()) > 1e-3  # it is a sketch


def test_short_vectors_are_folded_to_themselves() -> None:
    vectors = torch.randn(3, 50)
    assert torch.equal(fold(vectors, 50), vectors)
    assert fold(vectors, 20).shape == (3, 20)


def test_the_sketch_of_edges_is_the_one_it_was() -> None:
    """The tree of a saved run is compared with sketches of newcomers that are made now."""
    one = sketch(torch.arange(20_000.0)[None])[0]
    assert one[:4].tolist() == pytest.approx([-0.0022717, -0.0089645, -0.0147705, 0.0003519], rel=1e-3)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_on_moderate_federations_sketches_decide_as_half_updates_do(groups: int) -> None:
    fed = federation(30, groups)
    exact, asked = run("cfl", fed)
    assert HalfUpdates in asked
    assert SketchHalves not in asked
    found, asked = run("cfl:sketch=256", fed)
    assert SketchHalves in asked
    assert HalfUpdates not in asked
    assert clusters_of(found) == clusters_of(exact) == groups_of(30, groups)
    for ours, theirs in zip(found.models, exact.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_below_full_participation_too() -> None:
    fed = federation(40, 2)
    options = {"rounds": 24, "participation": 0.5}
    found = run("cfl:sketch=256", fed, **options)[0]
    assert clusters_of(found) == clusters_of(run("cfl", fed, **options)[0]) == groups_of(40, 2)


def as_if_many(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    for module in (cfl_check, cfl_rule, cfl_vectors):
        monkeypatch.setattr(module, "MANY", many)
    monkeypatch.setattr("coterie.methods.cfl_likeness.FEW", many // 2)
    monkeypatch.setattr(cfl_vectors, "SKETCH", 256)
    monkeypatch.setattr("coterie.clustering.many_halves.LANDMARKS", 50)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_clusters_of_very_many_are_judged_without_all_products(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation(90, groups)
    exact = run("cfl", fed, rounds=10)[0]
    as_if_many(monkeypatch, 20)

    def refused(*_: object) -> None:
        raise AssertionError("all products were formed")

    if groups == 1:
        monkeypatch.setattr(cfl_check, "grams", refused)
        monkeypatch.setattr(cfl_check, "cosine_matrix", refused)
    found, asked = run("cfl", fed, rounds=10)
    assert SketchHalves in asked
    assert clusters_of(found) == clusters_of(exact) == groups_of(90, groups)


def test_a_run_of_very_many_resumes_bit_for_bit(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    as_if_many(monkeypatch, 20)
    fed, options = federation(60, 2), {"participation": 0.6}
    whole = run("cfl", fed, rounds=14, **options)[0]
    stopped = run("cfl", fed, rounds=14, out=tmp_path / "run", max_seconds=1e-6, **options)[0]
    for limit in (1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 600.0):  # a round each time, and a check that lasts several of them
        resumed = coterie.resume(tmp_path / "run", federation=fed, model=network, max_seconds=limit, workers=1)
    assert stopped.history[-1].round == 1
    assert clusters_of(resumed) == clusters_of(whole)
    for ours, theirs in zip(resumed.models, whole.models, strict=True):
        assert torch.equal(ours, theirs)


def test_newcomers_are_compared_with_the_sketches_on_the_edges() -> None:
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(2, 5000, generator=generator)
    sides = [direction + 0.5 * torch.randn(6, 5000, generator=generator) for direction in directions]
    branches = [
        Branch(tuple(f"{i}{j}" for j in range(6)), torch.zeros(5000), sketch(fold(side, 256)))
        for i, side in enumerate(sides)
    ]
    tree = Tree.single([f"{i}{j}" for i in range(2) for j in range(6)], torch.zeros(5000)).split(0, branches, 1, {})
    for i, direction in enumerate(directions):
        newcomer = direction + 0.5 * torch.randn(5000, generator=generator)
        assert tree.descend(lambda model, newcomer=newcomer: newcomer).id == 1 + i  # type: ignore[misc]


def test_checks_laid_end_to_end_have_mean_cosines() -> None:
    generator = np.random.default_rng(0)
    first, second = (generator.standard_normal((8, 4096)).astype(np.float32) for _ in range(2))
    first[1:] += 2 * first[0]  # the clients of the first check are alike, those of the second are not
    checks = [(("a", "b", "c", "d"), first), (("d", "c", "b", "a"), second)]
    rows = laid_end_to_end(checks, ("d", "a", "b", "c"))
    units = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (first, second)]
    mine = {"a": (0, 3), "b": (1, 2), "c": (2, 1), "d": (3, 0)}
    for i, one in enumerate("dabc"):
        for j, other in enumerate("dabc"):
            expected = np.mean([unit[mine[one][n]] @ unit[4 + mine[other][n]] for n, unit in enumerate(units)])
            assert rows[i] @ rows[4 + j] == pytest.approx(expected, abs=4 / 4096**0.5)
    alone = laid_end_to_end(checks[1:], ("d", "c", "b", "a"))
    np.testing.assert_allclose(alone, units[1], atol=1e-6)
    narrower = [(checks[0][0], first[:, :7]), checks[1]]
    np.testing.assert_allclose(laid_end_to_end(narrower, ("d", "c", "b", "a")), units[1], atol=1e-6)
