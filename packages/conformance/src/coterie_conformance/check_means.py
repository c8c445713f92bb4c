"""Checks of means: weights that sum to one, that are relative, and clusters without participants that stay."""

from __future__ import annotations

import torch

from coterie.methods import Reply, Request
from coterie_conformance.checking import DoesNotApply, Failed, check
from coterie_conformance.subjects import Subject
from coterie_conformance.trials import CLIENTS, cluster_of, start, with_vector

STEP = 2.0**-6
"""What every number of every update is set to; a power of two, so that sums of it are exact."""


@check(
    "weights",
    "When all clients send the same update, does every model move by exactly that update, or stay?",
    "weights that do not sum to one: FLT's p_m/‖A_m‖₀ in case I",
)
def weights(subject: Subject) -> str | None:
    if getattr(subject.method, "averaging", "") == "gradient":
        raise DoesNotApply("gradients are divided by all participants, as the paper's option I has it")
    offset: list[bool] = []

    def same(request: Request, reply: Reply) -> Reply:
        if reply.vector is None:
            return reply
        offset.append(hasattr(request.task, "centres"))
        return with_vector(reply, torch.full_like(reply.vector, STEP), layout)

    layout = start(subject.method).server.layout
    trial = start(subject.method, change=same)
    before = trial.last
    if set(before.private) == set(layout.layers) and len(before.members) == CLIENTS:
        raise DoesNotApply("every client trains by itself")
    trial.rounds(1)
    if not offset:
        raise DoesNotApply("no client sends an update")
    if any(offset):
        raise DoesNotApply("clients send models relative to a mean of several, not updates of one")
    moved = 0.0
    for number, model in trial.last.by_id.items():
        steps = [(model - old).double() for old in before.by_id.values()]
        # By what the numbers moved, from the model that they came from.
        off, step = min(
            ((float(torch.minimum(s.abs(), (s - STEP).abs()).max()), s) for s in steps), key=lambda found: found[0]
        )
        if off > 1e-5:
            mean = float(step.mean())
            raise Failed(f"every update is {STEP:.4g}, and model {number} moves by {mean:.4g} on average")
        moved = max(moved, float(step.max()))
    if moved < STEP / 2:
        raise Failed(f"every update is {STEP:.4g}, and no model moves")
    return None


@check(
    "scale of sizes",
    "Does nothing change when every client has three times as many samples?",
    "weights that are not relative, such as a division by a fixed number",
)
def scale_of_sizes(subject: Subject) -> str | None:
    trial = start(subject.method, scale=3).rounds(subject.rounds)
    plain = subject.plain
    if cluster_of(trial.last) != cluster_of(plain.last):
        raise Failed("three times the samples: other clusters")
    for number, model in plain.last.by_id.items():
        if not torch.allclose(model, trial.last.by_id[number], rtol=1e-4, atol=1e-5):
            raise Failed(f"three times the samples: model {number} is another one")
    return None


@check(
    "idle clusters",
    "Does a cluster none of whose clients take part in a round keep its parameters?",
    "a mean over nobody that sets a model to zero or to something else",
)
def idle_clusters(subject: Subject) -> str | None:
    if subject.shares_layers:
        raise DoesNotApply("its clusters share layers")
    trial = start(subject.method).rounds(subject.rounds)
    if any(served.mixture for served in trial.last.served()):
        raise DoesNotApply("every client trains every model")
    if len(trial.last.members) == 1:
        raise DoesNotApply("there is one cluster")
    if set(trial.last.private) == set(trial.server.layout.layers):
        raise DoesNotApply("every client trains by itself")
    trial.server.participation = 1 / CLIENTS
    looked = 0
    for _ in range(3):
        before, home = trial.last.by_id, cluster_of(trial.last)
        [asked] = trial.server.participants(trial.t + 1)
        after = trial.round()
        touched = {home[asked], cluster_of(after).get(asked)}
        for number in set(before) & set(after.by_id) - touched:
            looked += 1
            if not torch.equal(before[number], after.by_id[number]):
                raise Failed(f"round {trial.t}: only {asked} took part, and model {number} of other clients changed")
    if not looked:
        raise DoesNotApply("its models have other ids after every round")
    return None
