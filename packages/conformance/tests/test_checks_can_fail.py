"""Checks that no slip of public code stands for: for each a method that does just what the check is there to find."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from coterie.methods import Assignment, Info, Server, average_clusters, members_of
from coterie_conformance import CHECKS, Subject, check_method
from coterie_conformance.doubles_others import Clusters
from coterie_conformance.slips import SLIPS


class Two:
    """FedAvg in two clusters, of the clients with more samples than most and of the others."""

    def cluster(self, client: str, server: Server) -> int:
        return int(server.samples[client] >= sorted(server.samples.values())[len(server.samples) // 2])

    def start(self, server: Server) -> Clusters:
        return Clusters(server.initial_model().repeat(2, 1), {c: self.cluster(c, server) for c in server.clients})

    def round(self, state: Clusters, t: int, server: Server) -> tuple[Clusters, Info]:
        new = {client: 0 for client in server.clients if client not in state.cluster_of}
        models, infos = average_clusters(server, t, state.models, state.cluster_of | new)
        return Clusters(models, state.cluster_of | new), Info(infos)

    def assignment(self, state: Clusters, server: Server) -> Assignment:
        cluster_of = dict.fromkeys(server.clients, 0) | state.cluster_of
        return Assignment(list(state.models), members_of(cluster_of, server.clients, 2))


class NumberInName(Two):
    def cluster(self, client: str, server: Server) -> int:
        return int(client[-1] in "02468")


class FirstHalf(Two):
    def cluster(self, client: str, server: Server) -> int:
        return int(server.clients.index(client) < len(server.clients) // 2)


class Peeking(Two):
    def cluster(self, client: str, server: Server) -> int:
        engine: Any = server.engine
        federation = getattr(engine, "_inner", engine).federation
        return int((federation[client].group or 0) % 2)


class Reading(Two):
    def cluster(self, client: str, server: Server) -> int:
        engine: Any = server.engine
        return int(engine.federation[client].train.y.sum()) % 2


class Shared(Two):
    def assignment(self, state: Clusters, server: Server) -> Assignment:
        told = super().assignment(state, server)
        return dataclasses.replace(told, models=[state.models[0], state.models[0]])


class InPlace(Two):
    def round(self, state: Clusters, t: int, server: Server) -> tuple[Clusters, Info]:
        after, info = super().round(state, t, server)
        state.models.copy_(after.models)
        return state, info


class FixedDivisor(Two):
    def round(self, state: Clusters, t: int, server: Server) -> tuple[Clusters, Info]:
        after, info = super().round(state, t, server)
        share = sum(server.samples.values()) / 300
        return Clusters(torch.lerp(state.models, after.models, share), after.cluster_of), info


class Uncounted(Two):
    def round(self, state: Clusters, t: int, server: Server) -> tuple[Clusters, Info]:
        after = super().round(state, t, server)
        server.traffic.drain()
        return after


class FirstOnly(Two):
    def assignment(self, state: Clusters, server: Server) -> Assignment:
        return Assignment(list(state.models), members_of(state.cluster_of, list(state.cluster_of), 2))


class Nowhere(Two):
    def place(self, state: Clusters, clients: Sequence[str], server: Server) -> dict[str, int]:
        return dict.fromkeys(clients, 99)


class AllOrNobody(Two):
    def round(self, state: Clusters, t: int, server: Server) -> tuple[Clusters, Info]:
        replies = list(server.ask(server.training_requests(server.participants(t), state.models[0], t)))
        if len(replies) < len(server.participants(t)):
            return Clusters(state.models * torch.inf, state.cluster_of), Info()
        return super().round(state, t, server)


BREAKS = {
    "names": NumberInName(),
    "order": FirstHalf(),
    "hidden groups": Peeking(),
    "replies only": Reading(),
    "aliasing": Shared(),
    "old state": InPlace(),
    "scale of sizes": FixedDivisor(),
    "bytes": Uncounted(),
    "newcomer": FirstOnly(),
    "place": Nowhere(),
    "failing client": AllOrNobody(),
}


@pytest.mark.parametrize("check", BREAKS)
def test_the_check_finds_it(check: str) -> None:
    [found] = check_method(Subject("broken", BREAKS[check]), [check])
    assert found.verdict == "fails"


@pytest.mark.parametrize("check", [name for name in BREAKS if name != "place"])
def test_the_check_passes_the_method_as_it_should_be(check: str) -> None:
    [found] = check_method(Subject("sound", Two()), [check])
    assert found.verdict == "ok", found.text


def test_every_check_has_something_to_find() -> None:
    assert set(CHECKS) == {*BREAKS, *(slip.check for slip in SLIPS), "partition", "repeats", "resumes"}
