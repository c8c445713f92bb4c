"""Auto: find out how these clients are served best, while training, by what held-out data surely says.

Before training the ways to share models are compared in closed form; clusters that are found alike in every part of the
data are a first split. Then clusters train, are split where that surely helps, and joined again where it does not last
(CFL by held-out benefit). In the end every client is served by what serves it best: its cluster's model or another on
its path, with a private output offset, or trained further on its own data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import ClassVar

from torch import Tensor

from coterie.benefit import FIRST_LOOK
from coterie.clustering.sketch import sketch
from coterie.methods import cfl
from coterie.methods.base import Assignment, Event, Info, method
from coterie.methods.closed_form import compare_sharing
from coterie.methods.compared import Compared
from coterie.methods.needs import Needs
from coterie.methods.served import serve, ways_known
from coterie.methods.server import Server, apply_update
from coterie.methods.splitting import BenefitRule, some_of
from coterie.methods.tree import Branch, splits_since
from coterie.snapshot import saved
from coterie.tasks import FeatureMoments, InputMoments, Task
from coterie.tasks.serving import ServeBy, TryToServe


@saved
class State:
    """The tree of clusters, what was found before training, and in the end how clients are served."""

    trained: cfl.State
    clusters: tuple[tuple[str, ...], ...] = ()
    """Clusters to begin with; none: one of all clients."""
    evidence: dict[str, float] = field(default_factory=dict)
    found: str = ""
    """What was found before training, in words."""
    known: tuple[int, ...] = ()
    """Ways to serve clients in the end that were sure before training."""
    by_model: dict[str, int] = field(default_factory=dict)
    """Clients that another model on their path serves, in the end."""
    own: tuple[str, ...] = ()
    """Clients that a version of their own serves, in the end."""
    served: tuple[Event, ...] = ()
    """What there is to record about how clients are served."""


@method("auto")
class Auto:
    """Whatever serves the clients best, by held-out data: one model, clusters, private offsets, own training."""

    server_steps: ClassVar[bool] = True
    tree: ClassVar[cfl.CFL] = cfl.CFL(fallback=False)

    @property
    def needs(self) -> Needs:
        """Single updates, moments of features, and versions of models that single clients keep."""
        tasks: tuple[type[Task], ...] = (InputMoments, FeatureMoments, TryToServe, ServeBy)
        instead = "use cfl:compare=projection(1024) with privacy='projection', or fedavg"
        return Needs(
            "must",
            self.tree.needs.tasks + tasks,
            personal=True,
            of_data="moments of the clients' inputs",
            instead=instead,
        )

    def start(self, server: Server) -> State:
        begun = self.tree.start(server)
        sharing = compare_sharing(server) if server.asks_halves else None
        if sharing is None:
            return State(begun)
        way = sharing.advised
        seen = replace(begun.memory[0], count=1, due=2 * FIRST_LOOK)  # this was the first look
        return State(
            replace(begun, memory={0: seen}),
            sharing.clusters,
            {} if way is None else way.gain.numbers(),
            sharing.sentence(),
            tuple(sorted(ways_known(sharing))),
        )

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        trained, info = self.tree.round(state.trained, t, server)
        if t == 1 and state.found:
            info = replace(info, events=[Event("found", state.found, dict(state.evidence)), *info.events])
        events = [self._why_whole(event, state, trained) for event in info.events]
        info = replace(info, events=events)
        if t == 1 and state.clusters:
            trained = self._split(trained, state, server)
            info = replace(info, splits=splits_since(trained.tree, 1))
        return replace(state, trained=trained, by_model={}, own=(), served=()), info

    @staticmethod
    def _why_whole(event: Event, state: State, trained: cfl.State) -> Event:
        """Where there was no look after the one before training, that one says why nothing was split."""
        if event.kind != "whole" or not state.found or trained.memory[0].count > 1:
            return event
        return Event("whole", f"no split: {state.found}", {"looks": 1, "reason": "no benefit"})

    def _split(self, trained: cfl.State, state: State, server: Server) -> cfl.State:
        """Give every cluster that was found before training the mean step of its own members from the first model."""
        root, rule = trained.tree.nodes[0], BenefitRule()
        halves = Compared().of_halves(some_of(server.participants(1), 1, root.id, server), root.model, 1, server)
        updates = halves.vectors.mean(0)
        branches = []
        for members in map(set, state.clusters):
            rows = [i for i, client in enumerate(halves.clients) if client in members]
            model = root.model.clone()
            if rows:  # none of the members may have taken part
                model[: updates.shape[1]] = apply_update(model[: updates.shape[1]], updates[rows].double().mean(0))
            branches.append(Branch(tuple(c for c in root.members if c in members), model, sketch(updates[rows])))
        tree = trained.tree.split(root.id, branches, 1, state.evidence)
        begun = replace(rule.begin(), due=FIRST_LOOK)
        memory = {0: trained.memory[0]} | {child.id: begun for child in tree.nodes[1:]}
        return replace(trained, tree=tree, memory=memory)

    def assignment(self, state: State, server: Server) -> Assignment:
        found = state.trained.tree.assignment(server.clients, state.by_model)
        private = server.layout.names if state.own else ()
        return replace(
            found, private=private, served_because="their validation loss is surely lower", events=state.served
        )

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The leaf of each newcomer, by CFL's Algorithm 4."""
        return self.tree.place(state.trained, clients, server)

    def path(self, state: State, client: str) -> dict[int, Tensor]:
        """The models from the root to the client's cluster."""
        return self.tree.path(state.trained, client)

    def foresee(self, server: Server) -> list[str]:
        """What makes a split impossible, in words."""
        return self.tree.foresee(server)

    def finish(self, state: State, server: Server) -> State:
        """Find out how every client is served best, by its validation data."""
        known, training = frozenset(state.known), server.schedule.at(1)
        ending = serve(state.trained.tree, known, training, server.rounds + 1, server)
        return replace(state, by_model=ending.by_model, own=ending.own, served=tuple(ending.events))
