"""IFCA (Ghosh, Chung, Yin, Ramchandran 2020), Algorithm 1: each client trains that of k models that fits it best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.methods.aggregation import WeightedSum
from coterie.methods.averaging import cluster_info, mean_loss
from coterie.methods.base import Assignment, Info, method
from coterie.methods.choices import RESENDS, Choices, choice_events, needs_of_choices, next_try
from coterie.methods.hidden_choices import HiddenChoices
from coterie.methods.ifca_growing import Growing
from coterie.methods.local_work import AVERAGING
from coterie.methods.options import refuse_others
from coterie.methods.placing import lowest_loss, lowest_loss_assignment
from coterie.methods.restarts import Restarts
from coterie.methods.server import Server
from coterie.methods.sharing import share_steps, shared_spans
from coterie.methods.starts import STARTS, start_models
from coterie.methods.variants import with_variants
from coterie.snapshot import saved
from coterie.tasks import Choose, Request


@saved
class State:
    """The models `(k, d)`, and who chose which."""

    models: Tensor
    choices: Choices
    loss: float = float("inf")
    """Mean training loss of the last round's participants."""
    draw: int = 0
    """The number of the start, where there are several."""


@method("ifca")
@with_variants
class IFCA:
    """k models; each client picks the one with its lowest training loss and helps to improve it (Algorithm 1)."""

    server_steps: ClassVar[bool] = True
    needs = property(needs_of_choices)

    k: Annotated[int, Field(ge=1)] | Literal["auto"] = 2
    """Number of clusters, or "auto": begin with one model, and make two of one where held-out data says that those who
    chose it are surely better served apart."""
    averaging: str = "model"
    """Option II: model (clients train, models are averaged). Option I: gradient (one step per round, by the server), as
    gradient(batch=50) on 50 samples per client, as gradient(divide_by=clients) with m all clients, not participants."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Weight of a client in a mean: one, as in the paper, or its number of samples, which it always is with k=auto."""
    init: str = "auto"
    """How models start: random (independent draws, as in the paper), redrawn (until a share of clients chooses each, as
    redrawn(0.35)), perturbed(0.1) (one draw with noise) or k-means++(5) (each next one by five rounds' training of the
    client that the others fit worst). auto is k-means++, but random where no single client is to decide."""
    restarts: Annotated[int, Field(ge=1, le=1000)] = 1
    """Independent restarts side by side; the one with the lowest last training loss counts. All are communicated."""
    clustered: str | tuple[str, ...] = "all"
    """Layers that each cluster has for itself ("last" or names); all others are averaged over all clients."""
    resend: str = "always"
    """When all k models are sent: always, or settled(5,recheck=10): once no client has moved for 5 rounds each is sent
    its own model only, and all of them again in every tenth round."""
    hide_choice: bool = False
    """On secure sums: clients send a block for every model, zeros but for the chosen one, so that the server does not
    learn who chose what. The records hold sizes and means over all clients only."""

    def __post_init__(self) -> None:
        AVERAGING.make(self.averaging)
        RESENDS.make(self.resend)
        start = STARTS.make(self.init)
        if self.k == "auto":
            refuse_others(self, "k=auto", ("k", "weighting"), "it begins with one model that grows, leave that out")
        if self.hide_choice:
            hides = ("k", "restarts", "clustered", "hide_choice", *(() if start.looks_at_clients else ("init",)))
            refuse_others(self, "hide_choice=True", hides, "that needs single clients' choices or losses, leave it out")

    def variant(self) -> Any:
        """What runs in place of Algorithm 1 under some options."""
        if self.k == "auto":
            return Growing()
        if self.restarts > 1:
            return Restarts(replace(self, restarts=1), self.restarts)
        return HiddenChoices(replace(self, hide_choice=False)) if self.hide_choice else None

    def start(self, server: Server, draw: int = 0) -> State:
        AVERAGING.make(self.averaging).check(server)
        shared = shared_spans(self.clustered, server)
        models = start_models(self.init, int(self.k), draw, shared, server)  # line 1: θ_j, j = 1 … k
        return State(models, Choices([0] * len(models)), draw=draw)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        resend = RESENDS.make(self.resend)
        own_only = resend.own_only(state.choices)
        requests = self._requests(state, own_only, t, server)  # lines 3-11
        known = [None if isinstance(task, Choose) else state.choices.last[client] for client, task in requests]
        sums, replies = server.exchange(requests, known, clusters=len(state.models), weighting=self.weighting)
        chosen = {reply.client: reply.group for reply in replies}  # line 6: s_i
        models = self.averaged(state.models, sums, t, server, state.draw)  # lines 12-15
        choices = state.choices.after(chosen, server.clients, own_only)
        loss = mean_loss(sums) if chosen else state.loss
        infos = [cluster_info(n, sums[j], server, j) for j, n in enumerate(choices.sizes) if n]
        events = choice_events(state.choices, choices, resend, t == server.rounds, next_try(self.init))
        return State(models, choices, loss, state.draw), Info(infos, events)

    def _requests(self, state: State, own_only: bool, t: int, server: Server) -> list[Request]:
        """Lines 4-10: a participant chooses the model of lowest loss (5), takes its gradient (8) or trains it (10)."""
        option, own = AVERAGING.make(self.averaging), state.choices.last if own_only else {}
        shared = tuple((span.start, span.stop) for span in shared_spans(self.clustered, server))
        how = option.training(t, server)
        rows = {j: state.models[j].clone() for j in sorted(set(own.values()))}
        requests = []
        for client in server.participants(t):  # line 4: i ∈ M_t
            seed = server.seed_of(t, client)
            choose = Choose(state.models, how, seed, shared)
            requests.append(Request(client, option.task(rows[own[client]], how, seed) if client in own else choose))
        return requests

    def averaged(self, models: Tensor, sums: Sequence[WeightedSum], t: int, server: Server, draw: int) -> Tensor:
        """The models `(k, d)` after the round; one that no client chose stays as it is."""
        option, m = AVERAGING.make(self.averaging), sum(total.weight for total in sums)
        spans = shared_spans(self.clustered, server)
        if not m:
            return models
        if option.gradients:  # option I, line 13: θ_j − γ/m Σ_i s_ij g_i
            m, rate = option.divisor(sums, self.weighting, server), option.rate(t, server)
            steps = [total.total / m for total in sums]
        else:  # option II, line 14: Σ_i s_ij θ̃_i / Σ_i s_ij
            rate, steps = 1.0, [total.mean() for total in sums] if spans else []
        share_steps(steps, sums, m, spans)  # section 4.1
        after = torch.empty_like(models)
        for j, (model, step) in enumerate(zip(models, steps or sums, strict=True)):
            after[j] = server.step(model, step, f"{draw}/{j}", rate)
        return after

    def assignment(self, state: State, server: Server) -> Assignment:
        """Every client with the model of its lowest training loss; clusters without a client have no place."""
        return lowest_loss_assignment(state.models, state.choices.latest, state.choices.last, server)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model with the lowest loss on each newcomer's data, among those that some client chose."""
        return lowest_loss({j: state.models[j] for j in sorted(set(state.choices.last.values()))}, clients, server)
