"""The engine of a simulation in which some clients are hostile."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.engines import LocalEngine
from coterie.federation import Federation
from coterie.methods import Aggregation
from coterie.tasks import Choose, Evaluate, Reduction, Reply, ReplyBlock, Request, reduced, with_norm
from coterie_attacks.attacks import Attack, chosen_centroids, poisoned
from coterie_attacks.crafting import Scene


class HostileEngine(LocalEngine):
    """Hostile clients know the honest clients' updates, and the run's `aggregation`.

    `share_of_rounds` is how much of the run is over; attacks that wait are honest until their share.
    """

    def __init__(
        self,
        federation: Federation,
        architecture: Callable[[int], nn.Module],
        *,
        attack: Attack,
        hostile: Sequence[str],
        aggregation: Aggregation | None = None,
        **options: Any,
    ) -> None:
        super().__init__(poisoned(federation, attack, hostile), architecture, **options)
        self.attack, self.hostile = attack, frozenset(hostile)
        self.aggregation = aggregation or Aggregation.parse()
        self.claims = attack.claims() if attack.claims else None
        self.share_of_rounds = 1.0
        if attack.samples is not None:
            self.samples = self.samples | dict.fromkeys(hostile, attack.samples)

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Do the requests; the hostile clients' replies are as the attack wants them."""
        scored = all(isinstance(request.task, Evaluate) and request.task.part == "test" for request in requests)
        if not self.hostile or scored or self.share_of_rounds <= self.attack.from_share:
            yield from super().run(requests, reduce)
            return
        replies = [reply for block in super().run(requests) for reply in block.replies]
        place = {request.client: i for i, request in enumerate(requests)}
        given = [None if reduce is None else reduce.groups[place[reply.client]] for reply in replies]
        asked = [requests[place[reply.client]] for reply in replies]
        sent = self._claimed(asked, self._gathered(asked, replies))
        sent = self._crafted(asked, sent, given)
        yield reduced(sent, None if reduce is None else reduce.at([place[reply.client] for reply in sent]))

    def _gathered(self, asked: Sequence[Request], replies: Sequence[Reply]) -> list[Reply]:
        """The replies, with the hostile clients in one cluster that honest ones chose, where clients choose: the
        first hostile client's, if it is one."""
        honest = [reply.group for reply in replies if reply.client not in self.hostile]
        chose = [r.group for q, r in zip(asked, replies, strict=True) if self._chooses(q)]
        chose = [group for group in chose if group in honest] or honest or chose
        return [
            replace(reply, group=chose[0]) if self._chooses(request) else reply
            for request, reply in zip(asked, replies, strict=True)
        ]

    def _chooses(self, request: Request) -> bool:
        return self.attack.together and request.client in self.hostile and isinstance(request.task, Choose)

    def _claimed(self, asked: Sequence[Request], replies: Sequence[Reply]) -> list[Reply]:
        """The replies with what the hostile clients claim."""
        claims, found = self.claims, list(replies)
        for i, (request, reply) in enumerate(zip(asked, replies, strict=True)):
            if claims is not None and reply.client in self.hostile:
                found[i] = self._measured(claims.false(request, reply, alone=len(asked) == 1))
        honest = [r.values["centroids"] for r in replies if "centroids" in r.values and r.client not in self.hostile]
        if self.attack.centroids and honest:
            chosen = chosen_centroids(honest)
            found = [
                replace(r, values={**r.values, "centroids": chosen}) if r.client in self.hostile else r for r in found
            ]
        return found

    def _crafted(self, asked: Sequence[Request], replies: list[Reply], given: Sequence[int | None]) -> list[Reply]:
        """The replies with crafted updates: all hostile clients of a sum send the same."""
        if self.attack.craft is None:
            return replies
        keys = [_cluster_key(*each) for each in zip(asked, replies, given, strict=True)]
        sent = list(replies)
        for key in dict.fromkeys(keys):
            own = [i for i, other in enumerate(keys) if other == key and replies[i].vector is not None]
            bad = [i for i in own if replies[i].client in self.hostile]
            honest = [_vector(replies[i]) for i in own if replies[i].client not in self.hostile]
            if bad and (honest or not self.attack.together):
                vector = self._vector_for(asked[bad[0]], replies[bad[0]], honest, len(bad))
                for i in bad:
                    sent[i] = self._measured(replace(replies[i], vector=vector))
        return sent

    def _vector_for(self, request: Request, reply: Reply, honest: Sequence[Tensor], hostile: int) -> Tensor:
        """What the hostile clients of one sum send."""
        assert self.attack.craft is not None
        own, task = _vector(reply), request.task
        model = task.models[reply.group] if isinstance(task, Choose) else getattr(task, "model", None)
        if model is not None and model.shape != own.shape:  # such as two half-updates in one vector
            model = None
        known = torch.stack(list(honest) or [own])
        return self.attack.craft(Scene(own, known, hostile, self._rule, model, self.layout)).to(own.dtype)

    def _rule(self, rows: Tensor) -> Tensor:
        """What the server makes of the rows: shortened as the run's limits say, then by its rule."""
        norms = rows[:, : self.layout.trainable].norm(dim=1)
        bound = self.aggregation.bounds({0: norms.tolist()})[0]
        kept = rows * (bound / norms.clamp_min(torch.finfo(rows.dtype).tiny)).clamp_max(1.0)[:, None]
        return self.aggregation.center(kept, [1.0] * len(rows))

    def _measured(self, reply: Reply) -> Reply:
        """The reply with the norm of the vector that it has now."""
        return with_norm(replace(reply, values={k: v for k, v in reply.values.items() if k != "norm"}), self.layout)


def _cluster_key(request: Request, reply: Reply, given: int | None) -> Hashable:
    """Equal for replies that are averaged together, as far as requests show: the same model was sent, or chosen."""
    model = getattr(request.task, "model", None)
    sent = model.data_ptr() if isinstance(model, Tensor) else reply.group
    return type(request.task), given if given is not None else sent, None if reply.vector is None else len(reply.vector)


def _vector(reply: Reply) -> Tensor:
    assert reply.vector is not None
    return reply.vector
