"""Checks of means: weights that sum to one, that are relative, and clusters without participants that stay."""

from __future__ import annotations

import torch

from coterie.methods import Assignment, Reply, Request
from coterie_conformance.checking import DoesNotApply, Failed, check
from coterie_conformance.subjects import Subject
from coterie_conformance.trials import CLIENTS, Trial, cluster_of, keeps_all, start, with_vector

STEP = 2.0**-10
"""What every number of every update is set to; a power of two, so that sums of it are exact."""


@check(
    "weights",
    "When all clients send the same update, does every model move by exactly that update, or stay?",
    "weights that do not sum to one: FLT's p_m/‖A_m‖₀ in case I",
)
def weights(subject: Subject) -> str | None:
    if getattr(subject.method, "averaging", "") == "gradient":
        raise DoesNotApply("gradients are divided by all participants, as the paper's option I has it")
    before, trial, others = _same_updates(subject, after=0)
    divided = set(trial.last.by_id) - set(before.by_id)
    if others or divided:  # whole models are sent first, or parts of a cluster train once more when it is divided
        before, trial, others = _same_updates(subject, after=subject.rounds)
    if keeps_all(before, trial.server) and len(before.members) == CLIENTS:
        raise DoesNotApply("every client trains by itself")
    if others:
        raise DoesNotApply("clients send models, not updates of one")
    moved = 0.0
    for number, model in trial.last.by_id.items():
        steps = [(model - old).double() for old in before.by_id.values()]
        # By what the numbers moved, from the model that they came from.
        off, step = min(
            ((float(torch.minimum(s.abs(), (s - STEP).abs()).max()), s) for s in steps), key=lambda found: found[0]
        )
        if off > STEP / 100:
            mean = float(step.mean())
            raise Failed(f"every update is {STEP:.3g}, and model {number} moves by {mean:.3g} on average")
        moved = max(moved, float(step.max()))
    if moved < STEP / 2:
        raise Failed(f"every update is {STEP:.3g}, and no model moves")
    return None


def _same_updates(subject: Subject, after: int) -> tuple[Assignment, Trial, list[str]]:
    """A round, after some others, in which all updates are the same: the models before it, the trial after it.

    And the tasks in it whose vectors are no updates.
    """
    others: list[str] = []
    begun = after == 0

    def same(request: Request, reply: Reply) -> Reply:
        if reply.vector is None or not begun:
            return reply
        if not hasattr(request.task, "training") or hasattr(request.task, "centres"):
            others.append(request.task.kind())
            return reply
        return with_vector(reply, torch.full_like(reply.vector, STEP), layout)

    layout = start(subject.method).server.layout
    trial = start(subject.method, change=same).rounds(after)
    before, begun = trial.last, True
    trial.round()
    return before, trial, others


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
    if subject.trains_others:
        raise DoesNotApply("clients of one cluster train models of others, by design")
    trial = start(subject.method).rounds(subject.rounds)
    if any(served.mixture for served in trial.last.served()):
        raise DoesNotApply("every client trains every model")
    if len(trial.last.members) == 1:
        raise DoesNotApply("there is one cluster")
    if keeps_all(trial.last, trial.server):
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
