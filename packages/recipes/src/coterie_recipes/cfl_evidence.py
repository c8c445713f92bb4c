"""What CFL's evidence is worth: p-values where clients are alike, power where not, and `diagnose` on tables."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import torch

from coterie import Client, CoterieError, Federation, Split
from coterie.randomness import derive
from coterie.runs import diagnose, make_config
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cfl_grid import Case, federation_of

NULLS, BINS = 25, 10
"""Federations of clients alike for each seed; bins of the histogram of their p-values."""
POWER_ROUNDS = 30
SITES = 12


def alike(number: int) -> Case:
    """A federation whose clients draw from one distribution, with settings drawn from those of the grid."""
    r = random.Random(f"cfl-p-values/{number}")
    data, model = r.choice(["digits", "mnist", "fashion"]), r.choice(["mlp", "logistic"])
    lr, epochs, clients = r.choice([0.01, 0.03, 0.1, 0.3]), r.choice([1, 3]), r.choice([8, 20, 60])
    noise, rounds = r.choice([0.0, 0.2]), r.choice([5, 10, 30])
    return Case(number, data, "iid", lr, epochs, 1.0, model, clients, 1, False, noise, rounds)


def conflicting(shift: str, data: str, lr: float, number: int) -> Case:
    """A federation of 20 clients in four groups that no single model fits."""
    return Case(number, data, shift, lr, 3, 1.0, "mlp", 20, 4, False, 0.0, POWER_ROUNDS)


def probe(case: Case, data_dir: str | None) -> dict[str, Any]:
    """What a diagnosis after the case's rounds says."""
    hidden = 16 if case.data != "digits" else 32
    model = f"mlp:hidden={hidden}" if case.model == "mlp" else case.model
    config = make_config({"rounds": case.rounds, "lr": case.lr, "epochs": case.epochs, "batch_size": 32, "model": model,
                          "seed": case.number, "workers": 1, "quiet": True})  # fmt: skip
    found = diagnose(config, federation=federation_of(case, data_dir))
    assert found.seen is not None
    return {"p": found.seen.p_value, "conflict": found.seen.conflict_p_value, "verdict": found.verdict}


@recipe("cfl-p-values", "CFL's test of one distribution: uniform p-values where clients are alike, power where not")
def cfl_p_values(study: Study) -> Findings:
    """25 federations of clients alike per seed, and eight that conflict: two shifts, data sets and step sizes."""
    from scipy import stats

    nulls = [alike(NULLS * seed + i) for seed in study.seeds for i in range(NULLS)]
    settings = [(s, d, lr) for s in ("permuted", "swapped") for d in ("digits", "mnist") for lr in (0.03, 0.1)]
    others = {(setting, seed): conflicting(*setting, 1000 + seed) for setting in settings for seed in study.seeds}
    jobs = {f"alike {case.number}": partial(probe, case, study.data_dir) for case in nulls}
    jobs |= {f"{setting} {seed}": partial(probe, case, study.data_dir) for (setting, seed), case in others.items()}
    found = study.cells(jobs)
    values = [found[f"alike {case.number}"]["p"] for case in nulls]
    name = f"clients alike ({len(values)} federations)"
    rows = [
        Row(name, f"p-values ≤ {level}", [float(np.mean(np.array(values) <= level))]) for level in (0.01, 0.05, 0.1)
    ]
    rows.append(Row(name, "p-value of Kolmogorov and Smirnov's test of a uniform distribution",
                    [float(stats.kstest(values, "uniform").pvalue)]))  # fmt: skip
    rows.append(Row(name, "judged incongruent", [_share([found[f"alike {c.number}"] for c in nulls], "incongruent")]))
    for setting in settings:
        cells = [found[f"{setting} {seed}"] for seed in study.seeds]
        where = f"{setting[1]} {setting[0]}, lr {setting[2]:g}, round {POWER_ROUNDS}"
        rows.append(Row(where, "p-value ≤ 0.05", [float(cell["p"] <= 0.05) for cell in cells]))
        rows.append(Row(where, "judged incongruent", [float(cell["verdict"] == "incongruent") for cell in cells]))
    counts = np.histogram(values, BINS, (0, 1))[0].tolist()
    notes = [f"p-values of clients alike in {BINS} bins of equal width: {', '.join(map(str, counts))}."]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.hist(values, BINS, (0, 1))
        axes.axhline(len(values) / BINS, linestyle="--", color="black")
        axes.set(xlabel="p-value", ylabel="federations", title="Clients alike: p-values should be uniform")

    return Findings(rows, notes, {"p-values": draw})


def _share(cells: list[dict[str, Any]], verdict: str) -> float:
    return [cell["verdict"] for cell in cells].count(verdict) / len(cells)


SCALES = {"scaled": np.ones(8), "raw": np.array([1, 10, 100, 0.1, 1, 1, 5, 1])}


def sites(rules: int, scales: str, seed: int) -> Federation:
    """Twelve sites of 40 to 1,000 rows with eight features and so many rules from features to labels."""
    generator = np.random.default_rng(derive(seed, "sites"))
    sizes = generator.permutation(np.geomspace(40, 1000, SITES).astype(int))
    weights = 3 * np.linalg.qr(generator.standard_normal((8, 8)))[0]
    clients = []
    for i, n in enumerate(sizes.tolist()):
        x = generator.standard_normal((n + 200, 8))
        y = torch.from_numpy(x @ weights[i % rules] + 0.5 * generator.standard_normal(n + 200) > 0).long()
        inputs = torch.from_numpy(x * SCALES[scales]).float()
        held = max(n // 5, 8)
        parts = [Split(inputs[a:b], y[a:b]) for a, b in ((0, n - held), (n - held, n), (n, n + 200))]
        clients.append(Client(f"site-{i:02d}", parts[0], parts[1], parts[2], i % rules))
    return Federation(clients, 2)


def diagnose_sites(rules: int, scales: str, lr: float, model: str, seed: int) -> dict[str, Any]:
    """The verdict on one set of sites; "refused" where training diverges, which is an error that says so."""
    config = make_config({"rounds": 20, "lr": lr, "model": model, "seed": seed, "workers": 1, "quiet": True})
    try:
        return {"verdict": diagnose(config, federation=sites(rules, scales, seed)).verdict}
    except CoterieError:
        return {"verdict": "refused"}


@recipe("diagnose-sites", "`diagnose` on twelve tables of 40 to 1,000 rows: one label rule, or three")
def diagnose_all_sites(study: Study) -> Findings:
    """Scaled and raw features, two step sizes, two models; one rule must never be called several, nor three one."""
    settings = [(scales, lr, m) for scales in SCALES for lr in (0.01, 0.1) for m in ("mlp", "logistic")]
    jobs = {
        f"{rules} {setting} {seed}": partial(diagnose_sites, rules, *setting, seed)
        for rules in (1, 3)
        for setting in settings
        for seed in study.seeds
    }
    found = study.cells(jobs)
    rows, notes = [], []
    for rules in (1, 3):
        for scales, lr, model in settings:
            verdicts = [found[f"{rules} {(scales, lr, model)} {seed}"]["verdict"] for seed in study.seeds]
            wrong = "incongruent" if rules == 1 else "congruent"
            where = f"{'one rule' if rules == 1 else 'three rules'}, {scales} features, lr {lr:g}, {model}"
            rows.append(Row(where, f"called {wrong}", [float(verdict == wrong) for verdict in verdicts]))
            counts = ", ".join(f"{name} {count}" for name, count in sorted(Counter(verdicts).items()))
            notes.append(f"{where}: {counts}")
    return Findings(rows, notes)
