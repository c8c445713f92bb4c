"""Does "Was it worth it?" keep its level? How often runs that differ in the seed alone are called different."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

from coterie import Federation, run
from coterie.data import find_scenario
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.benefit_checks import KINDS, SIZES, one_distribution
from coterie_views.verdict import LEVEL, ClientScores, judge

DATA = 0
"""The seed of every federation: only that of the training differs."""
ROUNDS = 15
SETTINGS: tuple[tuple[str, str, int, int], ...] = (
    ("digits:none", "fedavg", 12, 60),
    ("digits:none", "fedavg", 60, 15),
    ("digits:none", "local", 20, 40),
    ("digits:none+sizes(zipf)", "fedavg", 12, 60),
    ("digits:none+dirichlet(0.3)", "fedavg", 20, 40),
    ("digits:none+dirichlet(0.3)", "cfl", 20, 40),
    ("digits:permuted(4)", "fedavg", 20, 40),
    ("digits:permuted(4)", "cfl", 20, 40),
    ("digits:rotated(2)", "ifca:k=2", 12, 60),
    ("xor", "fedavg", 20, 60),
    ("opposite", "cfl", 12, 60),
)
"""Scenario, method, clients and samples of each; beside them federations of one distribution, by FedAvg."""


def scores_of(federation: Federation, method: str, seed: int) -> dict[str, Any]:
    """What the clients of one run are judged by, and how many samples they trained on."""
    model = "mlp" if len(federation.input_shape) > 1 else "mlp:hidden=16"
    how: dict[str, Any] = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "lr": 0.1, "model": model}
    result = run(method, federation, seed=seed, workers=1, progress=False, **how)
    found = ClientScores.of(result.clients)
    return {
        "accuracy": found.accuracy,
        "loss": found.loss,
        "samples": found.samples,
        "train": result.summary.train_samples,
    }


def in_scenario(scenario: str, method: str, clients: int, samples: int, seed: int) -> dict[str, Any]:
    """One run on a scenario."""
    return scores_of(find_scenario(scenario).build(clients=clients, samples=samples, seed=DATA), method, seed)


def of_one_distribution(kind: str, sizes: str, seed: int) -> dict[str, Any]:
    """FedAvg on clients of one distribution."""
    return scores_of(one_distribution(kind, sizes, DATA), "fedavg", seed)


def called_different(cells: Sequence[dict[str, Any]]) -> float:
    """The share of the pairs of these runs of which one is called better than the other."""
    found = [ClientScores(cell["accuracy"], cell["loss"], cell["samples"]) for cell in cells]
    pairs = list(combinations(found, 2))
    judged = [judge(one, {"the other": other}, cells[0]["train"])[0].answer for one, other in pairs]
    return sum(answer != "undecided" for answer in judged) / len(pairs)


@recipe("verdict-level", 'How often runs that differ in the seed alone are called different by "Was it worth it?"')
def verdict_level(study: Study) -> Findings:
    """Seventeen settings; `--seeds 21` makes 210 pairs of each."""
    jobs = {
        f"{scenario}, {method}, {clients} clients, {samples} samples": partial(
            in_scenario, scenario, method, clients, samples
        )
        for scenario, method, clients, samples in SETTINGS
    }
    jobs |= {f"{kind}, {sizes}, fedavg": partial(of_one_distribution, kind, sizes) for kind in KINDS for sizes in SIZES}
    cells = study.cells({f"{name}, {seed}": partial(job, seed) for name, job in jobs.items() for seed in study.seeds})
    shares = {name: called_different([cells[f"{name}, {seed}"] for seed in study.seeds]) for name in jobs}
    rows = [Row(name, "share of pairs called different", [share]) for name, share in shares.items()]
    over = [name for name, share in shares.items() if share > LEVEL]
    pairs = len(study.seeds) * (len(study.seeds) - 1) // 2
    notes = [f"{pairs} pairs of each setting; above {LEVEL:g}: {', '.join(over) or 'none'}"]
    return Findings([*rows, Row("all", "share of pairs called different", [sum(shares.values()) / len(shares)])], notes)
