"""Restarts and variants of a toy method, and what the server follows of choices."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.methods import Assignment, Info, Server, apply_update, method, saved
from coterie.methods.choices import RESENDS, Choices, choice_events
from coterie.methods.needs import Needs
from coterie.methods.restarts import Restarts
from coterie.methods.variants import with_variants
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config

SMALL: dict[str, Any] = {
    "scenario": "digits-iid", "clients": 4, "samples": 30, "model": "logistic", "rounds": 2, "workers": 1,
}  # fmt: skip


@saved
class ToyState:
    model: Tensor
    loss: float


@method("toy-with-restarts")
@with_variants
class Toy:
    """FedAvg whose start number 1 is a model far from all data."""

    needs: ClassVar[Needs] = Needs()

    restarts: int = 1
    """How often it starts."""

    def variant(self) -> Any:
        return Restarts(Toy(), self.restarts) if self.restarts > 1 else None

    def start(self, server: Server, draw: int = 0) -> ToyState:
        return ToyState(server.initial_model(draw) * (100.0 if draw == 1 else 1.0), float("inf"))

    def round(self, state: ToyState, t: int, server: Server) -> tuple[ToyState, Info]:
        [total], _ = server.exchange(server.training_requests(server.participants(t), state.model, t))
        loss = total.mean_loss()
        assert loss is not None
        return ToyState(apply_update(state.model, total.mean()), loss), Info()

    def assignment(self, state: ToyState, server: Server) -> Assignment:
        return Assignment([state.model], [list(server.clients)])

    def place(self, state: ToyState, clients: list[str], server: Server) -> dict[str, int]:
        return dict.fromkeys(clients, round(state.loss))


def test_any_method_with_draws_and_a_loss_can_be_restarted() -> None:
    server = assemble(make_config(SMALL))[0].server
    plain, several = Toy(), Toy(restarts=3)
    state = several.start(server)
    alone = [plain.start(server, draw) for draw in range(3)]
    for t in (1, 2):
        state, _ = several.round(state, t, server)
        alone = [plain.round(one, t, server)[0] for one in alone]
    best = min(alone, key=lambda one: one.loss)
    assert max(alone, key=lambda one: one.loss) is alone[1]
    assert torch.equal(several.assignment(state, server).models[0], best.model)
    assert several.place(state, ["x"], server) == plain.place(best, ["x"], server)


def test_choices_are_steady_while_no_client_moves_or_comes() -> None:
    clients = ["a", "b", "c"]
    choices = Choices([0, 0])
    steps = [
        ({"a": 0, "b": 1}, 0),  # first choices
        ({"a": 0}, 1),
        ({"a": 0, "b": 1}, 2),
        ({"c": 0}, 0),  # a first choice
        ({"a": 1}, 0),  # a move
        ({"a": 1, "b": 1, "c": 0}, 1),
    ]
    for now, steady in steps:
        choices = choices.after(now, clients, own_only=False)
        assert choices.steady == steady
    assert choices.last == {"a": 1, "b": 1, "c": 0}
    assert choices.after({"a": 1}, ["a", "c"], own_only=False).last == {"a": 1, "c": 0}
    # Who is sent its own model only cannot move, and a client that chooses for the first time unsettles no other.
    assert choices.after({"d": 1}, [*clients, "d"], own_only=True).steady == 2


def test_all_models_are_sent_again_in_every_recheck_round() -> None:
    resend, choices = RESENDS.make("settled(2,recheck=3)"), Choices([0])
    sent_own = []
    for _ in range(10):
        own_only = resend.own_only(choices)
        sent_own.append(own_only)
        choices = choices.after({"a": 0}, ["a"], own_only)
    assert sent_own == [False, False, False, True, True, False, True, True, False, True]
    assert not RESENDS.make("always").own_only(choices)


def test_the_saving_is_reported_once_and_a_move_each_time() -> None:
    resend = RESENDS.make("settled(1,recheck=2)")
    choices, kinds = Choices([0, 0]), []
    for choice in (0, 0, 0, 0, 1, 0):
        own_only = resend.own_only(choices)
        after = choices.after({"a": choice}, ["a"], own_only)
        kinds.append([event.kind for event in choice_events(choices, after, resend, False, "try again")])
        choices = after
    assert kinds == [[], ["stable"], [], [], ["moved"], ["moved"]]
