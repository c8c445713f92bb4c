"""Which method, and is it worth it? A cheap probe of a federation, then advice in words with its evidence and cost."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.data import Defaults
from coterie.errors import ConfigError, CoterieError
from coterie.federation import Federation
from coterie.methods import IFCA, FedAvg, Method, make_method
from coterie.runs import Model, Run, RunConfig, assemble, make_federation
from coterie.runs.records import to_json
from coterie_advice.advice_rule import Difference, Evidence, Recommendation, Way, recommend
from coterie_advice.closed_form import Scores, Sharing, compare_sharing
from coterie_advice.diagnosis import going_alone, look_once

MOST_CHECKED = 24
"""Clients that are checked for conflict there, and that go on alone."""
WARM_ROUNDS = 3
"""Rounds of one model, where the ways of sharing cannot be solved in closed form."""
ALONE_ROUNDS = 2
"""Rounds' training that clients then go on alone."""
NOT_TO_COPY = frozenset({"method", "out", "quiet"})
"""Options that the next command does not take over."""


@dataclass(frozen=True)
class Cost:
    """What the advised run will take, from one round of it."""

    seconds: float
    bytes: int
    fedavg_bytes: int
    """The same of FedAvg."""


@dataclass(frozen=True)
class Advice:
    """What to run next, and why; `str` of it is sentences."""

    evidence: Evidence
    recommendation: Recommendation
    cost: Cost
    command: str
    refused: dict[str, str]
    """Methods that would have come first but cannot run here, with the reason."""
    probe_seconds: float
    clusters: tuple[tuple[str, ...], ...] = ()
    """Who would share a model, where several are advised."""

    def words(self) -> list[str]:
        """The advice in sentences: what to do, the evidence, what it costs, and the command."""
        chosen, cost = self.recommendation, self.cost
        lines = [chosen.advice]
        if self.clusters:
            sizes = ", ".join(str(len(cluster)) for cluster in sorted(self.clusters, key=len, reverse=True))
            lines.append(f"In closed form the clusters have {sizes} clients.")
        lines += ["", "Why:", *(f"  {line}" for line in self.evidence.words())]
        lines += [f"  {name} cannot run here: {reason}" for name, reason in self.refused.items()]
        lines += ["", f"Gain over FedAvg to expect: {chosen.gain_words(self.evidence.unit)} {chosen.confidence_words}"]
        more = "" if chosen.method == "fedavg" else f" (FedAvg: {_size(cost.fedavg_bytes)})"
        lines.append(
            f"Cost of {self.evidence.rounds} rounds: about {_duration(cost.seconds)} on this machine, "
            f"{_size(cost.bytes)} sent{more}. The probe took {_duration(self.probe_seconds)}."
        )
        return [*lines, "", "Next:", f"  {self.command}"]

    def __str__(self) -> str:
        return "\n".join(self.words())

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain values."""
        found = to_json(self) | {"words": self.words()}
        return dict(found)


def advise(
    config: RunConfig,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Advice:
    """Probe a federation and recommend one model, several, or models of the clients' own.

    The ways of sharing are compared on a model that is solved in closed form, on training and validation data; test
    data is not looked at. One round of the method that is recommended shows what it costs. Where samples are sequences
    a few rounds are trained instead.

    Args:
        config: the run that is planned; its method does not count.
        federation: the clients, in place of those that the configuration names.
        model: the model, in place of the configuration's.
        say: is called with a line of text for every step.

    Returns:
        The advice; its `recommendation.method` can be given to `coterie.run`.

    Raises:
        ConfigError: an option is out of range or does not go with another one.
        DataError: the data is not at hand, or there is one client only.
    """
    began = time.process_time()
    clients, defaults = (federation, Defaults()) if federation is not None else make_federation(config)
    if len(clients) < 2:
        raise ConfigError(f"{len(clients)} client: advice is about sharing between clients, give at least two")
    say(f"comparing ways to share models on {len(clients)} clients")
    plain = _prepared(config, clients, model, FedAvg(), defaults)
    refused: dict[str, str] = {}
    try:
        server = plain.server
        linear = sum(len(entry.shape) > 1 for entry in server.layout.entries) <= 1
        sharing = compare_sharing(clients, linear=linear, seed=config.seed)
        evidence = _solved(sharing, clients, plain) if sharing is not None else _trained(clients, plain, say)
        for recommendation in recommend(evidence):
            say(f"one round of {recommendation.method}, to see what it costs")
            if recommendation.method == "fedavg":
                seconds, sent = _one_round(plain)
                break
            try:
                run = _prepared(config, clients, model, _unseeded(make_method(recommendation.method)), defaults)
                with contextlib.closing(run.engine):
                    seconds, sent = _one_round(run)
                break
            except CoterieError as problem:
                refused[recommendation.method] = str(problem)
        fedavg = len(server.participants(1)) * 2 * 4 * server.layout.size
    finally:
        plain.engine.close()
    cost = Cost(evidence.rounds * seconds, evidence.rounds * sent, evidence.rounds * fedavg)
    several = sharing.clusters if sharing is not None and recommendation.kind == "several" else ()
    command = next_command(config, recommendation.method, in_python=federation is not None)
    return Advice(evidence, recommendation, cost, command, refused, time.process_time() - began, several)


def _unseeded(method: Method) -> Method:
    """The method with the quickest start: IFCA's seeding takes as long as several rounds, once."""
    return replace(method, init="random") if isinstance(method, IFCA) else method


def _prepared(config: RunConfig, clients: Federation, model: Model | None, method: Method, defaults: Defaults) -> Run:
    return assemble(config, federation=clients, model=model, method=method, defaults=defaults)[0]


def _solved(sharing: Sharing, clients: Federation, run: Run) -> Evidence:
    """The evidence of the ways of sharing, solved in closed form."""
    ways: dict[Way, Scores] = {
        "several": sharing.several_gain,
        "personal": sharing.personal - sharing.one,
        "local": sharing.local - sharing.one,
    }
    gains = {way: Difference.of((100 * gain).tolist()) for way, gain in ways.items()}
    return Evidence(
        clients=len(clients),
        samples=int(np.median([len(client.train) for client in clients])),
        rounds=run.server.rounds,
        regression=clients.regression,
        one=100 * float(sharing.one.mean()),
        gains=gains,
        k=sharing.k,
        skew=sharing.skew,
        compared=len(sharing.clients),
        epochs=_epochs(run),
    )


def _epochs(run: Run) -> float:
    """Passes over its own data that a client makes in the whole run."""
    server, how = run.server, run.server.schedule.at(1)
    rounds = server.rounds * server.participation
    if how.steps is None:
        return rounds * how.epochs
    samples = float(np.median(list(server.samples.values())))
    return rounds * how.steps * (1.0 if how.batch_size is None else how.batch_size / max(samples, 1.0))


def _trained(clients: Federation, run: Run, say: Callable[[str], None]) -> Evidence:
    """The evidence of a few rounds, where the ways of sharing cannot be solved: sequences, several targets."""
    server, method = run.server, FedAvg()
    state = method.start(server)
    for t in range(1, WARM_ROUNDS + 1):
        say(f"round {t} of {WARM_ROUNDS} of one model")
        state, _ = method.round(state, t, server)
    asked = server.clients[:MOST_CHECKED]
    say("a check for conflict, and clients that go on alone")
    look = look_once(asked, state.model, WARM_ROUNDS + 1, server)
    alone = going_alone(asked, state.model, WARM_ROUNDS + 1, server, ALONE_ROUNDS)
    return Evidence(
        clients=len(clients),
        samples=int(np.median([len(client.train) for client in clients])),
        rounds=server.rounds,
        regression=clients.regression,
        one=None,
        gains={"personal": Difference(100 * alone.gain, 100 * alone.error)},
        k=1,
        skew=0.0,
        compared=len(asked),
        epochs=_epochs(run),
        conflict=look.split is not None,
    )


def _one_round(run: Run) -> tuple[float, int]:
    """CPU seconds and bytes of one round of a run and of evaluating it; what it starts with is left out."""
    state = run.method.start(run.server)
    run.server.traffic.drain()
    began = time.process_time()
    state, _ = run.method.round(state, 1, run.server)
    down, up = run.server.traffic.drain()
    run.score(run.method.assignment(state, run.server), 1, part="validation")
    return time.process_time() - began, down + up


def next_command(config: RunConfig, method: str, *, in_python: bool = False) -> str:
    """The command (or the call) that does the advised run, with the options that were given."""
    given = {
        key: value
        for key, value in config.model_dump(exclude_unset=True).items()
        if value is not None and key not in NOT_TO_COPY and value != RunConfig.model_fields[key].default
    }
    if in_python:
        options = ", ".join(f"{key}={value!r}" for key, value in given.items())
        return f"coterie.run({method!r}, federation{', ' if options else ''}{options})"
    words = ["coterie", "run", "--method", method]
    for key, value in given.items():
        if key == "task":
            words.append(f"--{value}")
        elif value is True:
            words.append("--" + key.replace("_", "-"))
        else:
            words += ["--" + key.replace("_", "-"), str(value)]
    return shlex.join(words)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
