"""In every round the library has its references' partition and parameters; tests/reference/library.py says how."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.cfl import CFL
from reference.clients import Round
from reference.fedavg import fedavg
from reference.fedcuau import fedcuau
from reference.flt import FLT
from reference.ifca import ifca
from reference.library import LINEAR, MLP, Recorded, Setting, run

TOLERANCE = 1e-12
HALF = {"participation": 0.5}
BATCHES = {"lr": 0.1, "epochs": 2, "batch_size": 8}
SLOW = {"lr": 0.05, "steps": 3, "batch_size": "full"}
LATE = {"c4": range(3, 99), "c9": range(7, 99)}
LEAVING = {"c0": range(1, 5), "c7": range(4, 99)}


def averaging(weighting: str = "samples", mu: float = 0.0, **how: Any) -> Setting:
    """FedAvg or FedProx."""
    spec = f"fedprox:mu={mu},weighting={weighting}" if mu else f"fedavg:weighting={weighting}"
    return Setting(spec, lambda made: fedavg(made.initial[0], made.schedule, made.clients, weighting, mu), **how)


def splitting(
    eps: tuple[float, float], gamma_max: float = 0.3, weighting: str = "samples", similarity: str = "update", **how: Any
) -> Setting:
    """CFL by the paper's rule, from the first round on. Its clients' permutation is not the library's."""
    rule = f"rule=paper(eps1={eps[0]},eps2={eps[1]},gamma_max={gamma_max}),fallback=false"

    def reference(made: Recorded) -> Iterator[Round]:
        numbers, private = len(made.initial[0]), "privacy" in made.setting.run
        order = np.random.default_rng(1).permutation(numbers) if private else np.arange(numbers)
        made.reference = CFL(made.clients, *eps, gamma_max, weighting, similarity, order)
        return made.reference.run(made.initial[0], made.schedule)

    return Setting(f"cfl:{rule},weighting={weighting},compare={similarity}", reference, rounds=12, **how)


def choosing(k: int, option: str = "II", weighting: str = "uniform", shared: bool = False, **how: Any) -> Setting:
    """IFCA from random models, with all layers per cluster or the last one."""
    averaging = {"I": "gradient", "II": "model"}[option]
    spec = f"ifca:k={k},init=random,averaging={averaging},weighting={weighting},clustered={'last' if shared else 'all'}"

    def reference(made: Recorded) -> Iterator[Round]:
        common = made.clients.network.head.start if shared else 0
        return ifca(made.initial[:k], made.schedule, made.clients, option, weighting, common)

    return Setting(spec, reference, **how)


def staged(count: int, weighting: str = "samples", mu: float = 0.0, **how: Any) -> Setting:
    """FedCUAU on FedAvg or FedProx."""
    base = f"fedprox:mu={mu},weighting={weighting}" if mu else f"fedavg:weighting={weighting}"

    def reference(made: Recorded) -> Iterator[Round]:
        initial, fresh = made.initial[:2]
        return fedcuau(fresh, initial, made.schedule, made.clients, count, weighting, mu)

    return Setting(f"fedcuau:clusters={count},measure=update,base=({base})", reference, model=MLP, **how)


def related(gamma: float, count: int | None = None, distance: str = "min", **how: Any) -> Setting:
    """FLT: case I, or case II with a number of clusters."""
    case = "case=1" if count is None else f"case=2,clusters={count}"

    def reference(made: Recorded) -> Iterator[Round]:
        positions = {client: own.astype(np.float64) for client, own in made.positions.items()}
        flt = FLT(made.clients, positions, gamma, count, distance)
        return flt.run(made.initial[0], made.schedule)

    return Setting(f"flt:{case},gamma={gamma},distance={distance}", reference, **how)


SETTINGS = {
    "fedavg": averaging(),
    "fedavg, uniform, half": averaging("uniform", run=HALF),
    "fedavg, batches, half": averaging(training=BATCHES, model=MLP, run=HALF),
    "fedavg, joins and leaves": averaging(present=LEAVING, model=LINEAR, training=SLOW),
    "fedprox": averaging(mu=0.1, model=MLP),
    "fedprox, uniform, batches, half": averaging("uniform", 0.5, training=BATCHES, run=HALF),
    "cfl": splitting((0.1, 0.2), clusters=5),
    "cfl, even": splitting((0.1, 0.4), sizes=(30,) * 12, clusters=3),
    "cfl, uniform": splitting((0.1, 0.4), weighting="uniform", clusters=3),
    "cfl, five groups": splitting((0.1, 0.4), groups=5, model=LINEAR, training=SLOW, clusters=5),
    "cfl, half": splitting((0.4, 0.4), model=MLP, run=HALF, clusters=5),
    "cfl, batches": splitting((0.4, 0.4), model=MLP, training=BATCHES, clusters=5),
    "cfl, gradients, half": splitting((0.2, 0.4), similarity="gradient", run=HALF, clusters=2),
    "cfl, joins": splitting((0.2, 0.4), present=LATE, clusters=4),
    "cfl, uniform, joins": splitting((0.2, 0.4), weighting="uniform", present=LEAVING, clusters=3),
    "cfl, refused": splitting((0.2, 0.4), 0.99),
    "cfl, permuted": splitting((0.2, 0.4), run={"privacy": "permutation"}, clusters=4),
    "cfl, signed, joins": splitting((0.2, 0.4), run={"privacy": "signed-permutation"}, present=LATE, clusters=4),
    "ifca I": choosing(3, "I", clusters=3),
    "ifca I, one empty": choosing(5, "I", groups=4, model=LINEAR, training=SLOW, clusters=4),
    "ifca I, samples, half": choosing(4, "I", "samples", run=HALF, clusters=3),
    "ifca I, shared, one empty": choosing(4, "I", shared=True, model=MLP, clusters=3),
    "ifca II": choosing(3, clusters=3),
    "ifca II, one empty": choosing(5, model=MLP, groups=4, clusters=4),
    "ifca II, samples, one empty": choosing(4, weighting="samples", model=LINEAR, training=SLOW, clusters=3),
    "ifca II, shared, half": choosing(3, shared=True, model=MLP, run=HALF, clusters=3),
    "ifca II, shared, samples, two empty": choosing(5, "II", "samples", shared=True, model=MLP, clusters=3),
    "ifca II, batches, joins and leaves": choosing(3, training=BATCHES, present=LEAVING, clusters=2),
    "fedcuau": staged(2, clusters=2),
    "fedcuau, four": staged(4, clusters=4),
    "fedcuau, uniform, half": staged(3, "uniform", run=HALF, clusters=3),
    "fedcuau, fedprox": staged(3, mu=0.2, clusters=3),
    "fedcuau, fedprox, uniform, half": staged(4, "uniform", mu=0.2, run=HALF, clusters=4),
    "fedcuau, joins": staged(3, present=LATE, rounds=8, clusters=3),
    "flt I": related(0.8, clusters=6),
    "flt I, half": related(0.8, run=HALF, rounds=8, clusters=6),
    "flt I, some isolated, half": related(0.3, run=HALF, clusters=9),
    "flt I, matching": related(1.5, distance="matching", clusters=8),
    "flt I, joins": related(0.8, present=LATE, rounds=8, clusters=6),
    "flt II": related(0.8, 3, clusters=3),
    "flt II, half": related(0.8, 3, run=HALF, clusters=3),
    # From seed 0 two merges of Ward's method cost the same.
    "flt II, joins": related(0.8, 3, present=LATE, rounds=8, clusters=3, seed=1),
}


def difference(ours: Round, theirs: Round) -> float:
    """The largest difference of the parameters, relative to the largest parameter."""
    assert ours.models.keys() == theirs.models.keys()
    largest = max(np.abs(model).max() for model in theirs.models.values())
    return max(np.abs(ours.models[name] - model).max() for name, model in theirs.models.items()) / largest


def largest_difference(made: Recorded) -> float:
    """The largest over all rounds, whose partitions must be the same."""
    found = []
    for t, (ours, theirs) in enumerate(zip(made.rounds, made.setting.reference(made), strict=True), 1):
        assert ours.mates == theirs.mates, f"another partition in round {t}"
        found.append(difference(ours, theirs))
    return max(found)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_partition_and_parameters_in_every_round(name: str) -> None:
    made, _ = run(SETTINGS[name])
    found, clusters = largest_difference(made), len(set(made.rounds[-1].mates.values()))
    print(f"| {name} | {found:.1e} | {clusters} |")
    assert found <= TOLERANCE
    assert clusters == SETTINGS[name].clusters


@pytest.mark.parametrize("seed", range(20))
def test_fedavg_by_default_is_the_weighted_mean(seed: int) -> None:
    drawn = np.random.default_rng(seed).lognormal(3, 2, size=8).clip(2, 2000).astype(int)
    how = {"rounds": 3, "training": BATCHES, "run": HALF if seed % 2 else {}, "seed": seed}
    made, _ = run(replace(averaging(sizes=(2000, *drawn, 2), **how), spec="fedavg"))
    assert largest_difference(made) <= TOLERANCE


def test_newcomers_after_the_run_are_assigned_by_algorithm_4() -> None:
    never = {f"c{number}": range(0) for number in (1, 5, 9, 10)}
    made, result = run(splitting((0.1, 0.2), present=never))
    assert largest_difference(made) <= TOLERANCE
    newcomers = {client: (made.federation[client].train.x, made.federation[client].train.y) for client in never}
    for client, leaf in result.assign(newcomers).items():
        theirs = made.reference.assign(made.reference.root, client, made.setting.rounds)
        assert set(result.state.tree.nodes[leaf].members) == set(theirs.members)
    assert len(set(result.assign(newcomers).values())) > 1


def test_references_import_numpy_and_the_standard_library_alone() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        if path.stem not in ("library", "test_references"):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
            roots = {name.partition(".")[0] for name in names}
            assert roots <= {"numpy", "reference", *sys.stdlib_module_names}
            assert "reference.library" not in names
