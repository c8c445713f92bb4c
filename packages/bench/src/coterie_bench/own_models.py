"""Rounds with models that users write as classes, evaluation included, beside the loops they would write instead.

    python -m coterie_bench.own_models docs/results/own-models.json [row ...]

Contenders: Coterie with the class, and with the same network as a Sequential; a tight loop (no DataLoader,
`autograd.grad`, `_foreach_add_`); and, where `pip install jax` was run, one compiled JAX function. All train the same
participants on the same batches from the same model and evaluate them in every round. They alternate in one process
with one thread; ratios are of processor seconds within a repetition, `load` is what else the machine had to do.
Measured rows replace those in the file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from coterie import FedAvg, Federation, Training
from coterie.engines import LocalEngine
from coterie.methods import Server
from coterie.runs import score_clients
from coterie.trainers import LearningRateSchedule
from coterie_bench.contenders import ENDLESS, OURS, Contender
from coterie_bench.jax_scan import JAX_SCAN, JaxScanRounds
from coterie_bench.measure import Spread, Timing, interleaved
from coterie_bench.own_classes import OWN_MODELS, OwnModel

TIGHT, TWIN = "tight loop", "coterie, as a Sequential"
BATCH, LR, SEED, REPEAT = 10, 0.05, 0, 5


class EvaluatedRounds:
    """Coterie: a round of FedAvg on the local engine, and the participants' test data under the new model."""

    def __init__(self, federation: Federation, make: Callable[[], nn.Module], own: OwnModel, name: str = OURS) -> None:
        self.name = name
        self.engine = LocalEngine(federation, partial(seeded, make), workers=1)
        schedule = LearningRateSchedule(Training(lr=LR, epochs=1, batch_size=BATCH), ENDLESS)
        self.server = Server(self.engine, schedule, SEED, ENDLESS, own.participation)
        self.method = FedAvg()
        self.state = self.method.start(self.server)

    def round(self, t: int) -> None:
        self.state, _ = self.method.round(self.state, t, self.server)
        score_clients(self.method.assignment(self.state, self.server), self.engine, among=self.server.participants(t))

    def close(self) -> None:
        self.engine.close()


class TightRounds:
    """The leanest loop in torch: the parameters themselves, one gradient and one addition per step."""

    name = TIGHT

    def __init__(self, federation: Federation, module: nn.Module, server: Server) -> None:
        self.federation, self.module, self.server = federation, module, server
        self.parameters: list[torch.Tensor] = list(module.parameters())

    def round(self, t: int) -> None:
        start = [p.detach().clone() for p in self.parameters]
        total = [torch.zeros_like(p) for p in start]
        clients = self.server.participants(t)
        self.module.train()
        for client in clients:
            self._train(
                self.federation[client].train.x, self.federation[client].train.y, self.server.seed_of(t, client)
            )
            with torch.no_grad():
                torch._foreach_add_(total, self.parameters)
                torch._foreach_copy_(self.parameters, start)
        with torch.no_grad():
            torch._foreach_div_(total, len(clients))
            torch._foreach_copy_(self.parameters, total)
        self._evaluate(clients)

    def _train(self, x: torch.Tensor, y: torch.Tensor, seed: int) -> None:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(BATCH):
            loss = F.cross_entropy(self.module(x[rows]), y[rows])
            gradients = torch.autograd.grad(loss, self.parameters)
            with torch.no_grad():
                torch._foreach_add_(self.parameters, gradients, alpha=-LR)

    @torch.no_grad()
    def _evaluate(self, clients: Sequence[str]) -> list[tuple[float, float]]:
        self.module.eval()
        scores = []
        for client in clients:
            test = self.federation[client].test
            outputs = self.module(test.x)
            hits = (outputs.argmax(1) == test.y).sum() / len(test)
            scores.append((float(F.cross_entropy(outputs, test.y)), float(hits)))
        return scores

    def close(self) -> None:
        """Nothing to release."""


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The network with the weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def contenders_of(own: OwnModel) -> list[Contender]:
    """Everything that can be timed on a row here."""
    federation = own.federation(SEED)
    ours = EvaluatedRounds(federation, own.make, own)
    module = seeded(own.make, ours.server.model_seed())
    contenders: list[Contender] = [ours, TightRounds(federation, module, ours.server)]
    if own.twin is not None:
        contenders.append(EvaluatedRounds(federation, own.twin, own, TWIN))
    if own.in_jax and importlib.util.find_spec("jax") is not None:
        contenders.append(JaxScanRounds(federation, module, ours.server, LR, BATCH))
    return contenders


def measure(own: OwnModel, repeat: int = REPEAT) -> Timing:
    """Rounds of every contender in turn, after one that counts for none."""
    contenders = contenders_of(own)
    try:
        for contender in contenders:
            contender.round(1)
        return interleaved(contenders, repeat, 2, lambda text: None)
    finally:
        for contender in contenders:
            contender.close()


def summary(timing: Timing) -> dict[str, Any]:
    """Processor seconds and wall seconds of a row, and how many times ours the others' are."""
    others = [name for name in timing.cpu if name != OURS]
    return {
        "cpu_seconds": {name: Spread.of(values).as_dict() for name, values in timing.cpu.items()},
        "seconds": {name: Spread.of(values).as_dict() for name, values in timing.seconds.items()},
        "times_ours": {name: Spread.of(timing.cpu_ratios(OURS, name)).as_dict() for name in others},
    }


def main(path: str, *names: str) -> None:
    """Measure, and write the numbers to `path`."""
    torch.set_num_threads(1)
    file = Path(path)
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else {}
    for name in names or OWN_MODELS:
        rows[name] = summary(measure(OWN_MODELS[name])) | {"load": round(os.getloadavg()[0], 1)}
        ratios = {other: f"{s['median']:.2f}" for other, s in rows[name]["times_ours"].items()}
        print(name, f"{rows[name]['cpu_seconds'][OURS]['median']:.3f} s", ratios, flush=True)
        about = {"repetitions": REPEAT, "torch": torch.__version__, "threads": 1}
        file.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])


__all__ = ["JAX_SCAN", "TIGHT", "TWIN", "EvaluatedRounds", "TightRounds", "contenders_of", "measure", "summary"]
