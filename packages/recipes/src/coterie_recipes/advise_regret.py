"""What `advise` costs in hindsight: its recommendation against the best of many methods, federation by federation."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from coterie import Federation, Result, run
from coterie.data import available
from coterie.errors import CoterieError
from coterie.runs import make_config
from coterie_advice import advise
from coterie_recipes.advise_federations import Case, draw, federation_of, training_of
from coterie_recipes.base import Findings, Row, Study, recipe

CANDIDATES = ("fedavg", "local", "ditto", "fedper", "cfl", "ifca", "ifca:k=auto", "clove:k=auto", "flt")
"""What is run in hindsight beside the recommendation. Nobody tells `ifca` how many clusters: it takes two."""
NEEDED = ("mnist", "fashion-mnist", "mnist-writers", "heart-disease", "hsb82", "exam", "chem97")


def score_of(result: Result, case: Case, federation: Federation) -> float:
    """Points on test data: mean accuracy or AUC over clients, or the share of the variance of all that is explained."""
    if case.metric != "r2":
        return 100 * (result.summary.metrics[case.metric].mean or 0.0)
    targets = torch.cat([client.test.y.reshape(-1) for client in federation]).double()
    errors = sum((client.metrics["loss"] or 0.0) * client.test_samples for client in result.clients)
    return 100 * (1 - errors / float(targets.var(unbiased=False) * len(targets)))


def judge(number: int, data_dir: str | None) -> dict[str, Any]:
    """Advice on one federation, and what every candidate and the recommendation reach on test data."""
    case = draw(number)
    federation, how = federation_of(case, data_dir), training_of(case)
    _warm_up()
    began = time.process_time()
    advice = advise(make_config(how), federation=federation)
    probe = time.process_time() - began
    chosen = advice.recommendation
    reached: dict[str, Any] = {}
    for method in dict.fromkeys((*CANDIDATES, chosen.method)):
        began = time.process_time()
        try:
            metrics = {} if case.metric == "accuracy" else {"metrics": case.metric}
            result = run(method, federation, **how, **metrics)  # type: ignore[arg-type]
        except CoterieError as problem:
            reached[method] = {"refused": str(problem)}
            continue
        seconds = time.process_time() - began
        reached[method] = {"score": score_of(result, case, federation), "cpu_seconds": round(seconds, 3)}
    return {
        "federation": case.words(),
        "metric": case.metric,
        "kind": case.kind,
        "advised": chosen.method,
        "gain": chosen.gain,
        "confidence": chosen.confidence,
        "evidence": {way: [gain.mean, gain.error] for way, gain in advice.evidence.gains.items()},
        "k": advice.evidence.k,
        "skew": advice.evidence.skew,
        "probe_cpu_seconds": round(probe, 4),
        "reached": reached,
    }


def _warm_up() -> None:
    """Load what is loaded once per process (UMAP compiles for FLT), so that it is in nobody's time."""
    small = {"scenario": "digits-iid", "clients": 4, "rounds": 1, "workers": 1}
    if "flt" in CANDIDATES:
        run("flt", **small)  # type: ignore[arg-type]
    advise(make_config(small))
    torch.set_num_threads(1)  # what FLT loads has set another number


def regret_of(cell: dict[str, Any]) -> dict[str, float]:
    """One federation in numbers: regret, gain over FedAvg, and the probe's share of the best method's time."""
    scores = {method: found["score"] for method, found in cell["reached"].items() if "score" in found}
    best = max(scores, key=lambda method: scores[method])
    return {
        "regret": scores[best] - scores[cell["advised"]],
        "gain": scores[cell["advised"]] - scores["fedavg"],
        "fedavg_regret": scores[best] - scores["fedavg"],
        "share": cell["probe_cpu_seconds"] / cell["reached"][best]["cpu_seconds"],
        "share_of_fedavg": cell["probe_cpu_seconds"] / cell["reached"]["fedavg"]["cpu_seconds"],
    }


@recipe("advise-regret", "The regret of advise against the best of ten methods in hindsight, federation by federation")
def advise_regret(study: Study) -> Findings:
    """Seeds are the numbers of federations: 0 to 38 are for calibration, others to judge."""
    present = {source.name for source in available(study.data_dir) if source.present}
    missing = [name for name in NEEDED if name not in present]
    if missing:
        study.log(f"left out, for want of {', '.join(missing)}: every federation that is not of digits")
    numbers = [number for number in study.seeds if not missing or draw(number).data == "digits"]
    cells = study.cells({f"federation-{number}": partial(judge, number, study.data_dir) for number in numbers})
    rows, notes, all_found = [], [], []
    for number in numbers:
        cell = cells[f"federation-{number}"]
        found = regret_of(cell)
        all_found.append(found)
        rows.append(Row(f"{cell['federation']}: {cell['advised']}", "regret", [found["regret"]]))
        if found["regret"] > 1.5 or found["gain"] < -0.5:
            scores = {m: round(v["score"], 1) for m, v in cell["reached"].items() if "score" in v}
            notes.append(f"missed: {cell['federation']}: {cell['advised']} advised, of {scores}")
    for measure in ("regret", "gain", "fedavg_regret", "share", "share_of_fedavg"):
        values = [found[measure] for found in all_found]
        rows.append(Row("all", f"mean {measure}", [statistics.fmean(values)]))
        rows.append(Row("all", f"least {measure}", [min(values)]))
        rows.append(Row("all", f"largest {measure}", [max(values)]))
    return Findings(rows, notes)
