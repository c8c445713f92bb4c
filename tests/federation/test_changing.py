"""Federations that change with time: phases by round, on every number of workers, after a kill, in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.data.drifting import EXCHANGE, NEW_GROUP, RETURN
from coterie.data.scenarios import find_scenario
from coterie.engines.local import LocalEngine
from coterie.errors import ConfigError, DataError
from coterie.federation import ChangingFederation, Federation
from coterie.federation.fingerprint import fingerprint
from coterie.federation.validation import hold_out
from coterie.methods import Assignment, Info, Server
from coterie.models.registry import build
from coterie.runs.recording import changed_event
from coterie.snapshot import saved


def two_phases(start: int = 3) -> ChangingFederation:
    """Four clients; the labels of the last two are inverted from round `start` on, and they lose a few samples."""
    generator = torch.Generator().manual_seed(0)
    data = {f"c{i}": torch.randn(20, 2, generator=generator) for i in range(4)}
    splits = (0.6, 0.2, 0.2)
    before = Federation.from_tensors(
        {c: (x, (x[:, 0] > 0).long()) for c, x in data.items()}, groups=[0, 0, 0, 0], splits=splits
    )
    after = Federation.from_tensors(
        {c: (x[:15], (x[:15, 0] < 0).long()) for c, x in data.items()}, groups=[1, 1, 1, 1], splits=splits
    )
    kept = [before["c0"], before["c1"], after["c2"], after["c3"]]
    return ChangingFederation({1: before, start: before.with_clients(kept)})


@saved
class Seen:
    """How many training samples clients had, by round."""

    model: torch.Tensor
    samples: list[dict[str, int]]


class Watching:
    """Trains by FedAvg and remembers how many samples every client had."""

    def start(self, server: Server) -> Seen:
        return Seen(server.initial_model(), [])

    def round(self, state: Seen, t: int, server: Server) -> tuple[Seen, Info]:
        [total], replies = server.exchange(server.training_requests(server.clients, state.model, t))
        seen = {reply.client: reply.samples for reply in replies}
        assert seen == server.samples
        return Seen(server.step(state.model, total.mean()), [*state.samples, seen]), Info()

    def assignment(self, state: Seen, server: Server) -> Assignment:
        return Assignment([state.model], [server.clients])


def test_phases_are_found_by_round() -> None:
    federation = two_phases()
    first, second = federation.phases.values()
    assert [federation.at(t) for t in (0, 1, 2, 3, 99)] == [first, first, first, second, second]
    plain = find_scenario("xor").build(clients=4, seed=1)
    assert plain.at(7) is plain
    assert federation.subset(["c3", "c0"]).at(3)["c3"] is second["c3"]
    assert federation.subset(["c3", "c0"]).ids == ("c3", "c0")
    with pytest.raises(DataError, match=r"begin in rounds \[2\]: the first one begins in round 1"):
        ChangingFederation({2: first})
    with pytest.raises(DataError, match="from round 5 has other clients"):
        ChangingFederation({1: first, 5: second.subset(["c0"])})
    wide = Federation.from_tensors({c: (torch.randn(20, 3), torch.arange(20) % 2) for c in first.ids})
    with pytest.raises(DataError, match="from round 5 has samples of another shape"):
        ChangingFederation({1: first, 5: wide})


def test_what_is_held_out_and_hashed_follows_the_phases() -> None:
    federation = two_phases()
    held = hold_out(federation, 0.25, 7)
    assert isinstance(held, ChangingFederation)
    assert held.at(3)["c0"] is held.at(1)["c0"]  # a client that stays the same does so
    assert held.at(3)["c2"] is not held.at(1)["c2"]
    assert len(held.at(3)["c2"].train) < len(federation.at(3)["c2"].train)
    assert fingerprint(two_phases()) == fingerprint(federation)
    assert len({fingerprint(two_phases(4)), fingerprint(federation), fingerprint(federation.at(1))}) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_hold_what_they_hold_in_that_round(workers: int, tmp_path: Path) -> None:
    federation = two_phases()
    options: dict[str, Any] = {"model": "mlp:hidden=3", "rounds": 4}
    result = coterie.run(Watching(), federation, workers=workers, **options)
    before, after = ({client.id: len(client.train) for client in phase} for phase in federation.phases.values())
    assert before != after
    assert result.state.samples == [before, before, after, after]
    [event] = [event for record in result.history for event in record.events]
    assert (event.kind, event.details) == ("changed", {"clients": ["c2", "c3"]})
    assert event in result.history[2].events
    # The last phase is what clients are measured on.
    tests = {client.id: len(client.test) for client in federation.at(4)}
    assert {row.client: row.test_samples for row in result.clients} == tests


def test_a_resumed_run_is_in_the_right_phase(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "mlp:hidden=3", "rounds": 4, "workers": 1}

    class Kill:
        def on_start(self, run: Any, done: int) -> None: ...
        def on_event(self, t: int, event: Any) -> None: ...
        def on_end(self, result: Any) -> None: ...
        def on_round(self, record: Any) -> None:
            if record.round == 3:
                raise KeyboardInterrupt

    whole = coterie.run("fedper", two_phases(), **options, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        coterie.run("fedper", two_phases(), **options, out=tmp_path / "run", callbacks=[Kill()])
    resumed = coterie.resume(tmp_path / "run", federation=two_phases(), workers=1)
    assert resumed.clients == whole.clients
    assert [r.metrics for r in resumed.history] == [r.metrics for r in whole.history]
    again = coterie.resume(tmp_path / "whole", federation=two_phases(), workers=1)  # nothing is left to do
    assert again.clients == whole.clients
    assert again.summary.metrics == whole.summary.metrics


def test_private_state_stays_with_its_client() -> None:
    engine = LocalEngine(two_phases(), lambda seed: build("mlp:hidden=3", (2,), 2, seed))
    engine.contexts["c2"].state["private"] = torch.ones(2)
    assert engine.enter_round(2) == []
    assert engine.enter_round(3) == ["c2", "c3"]
    assert engine.contexts["c2"].state["private"].tolist() == [1, 1]
    assert engine.now.groups == [0, 0, 1, 1]


def test_the_groups_of_the_last_phase_are_what_clusters_are_judged_by() -> None:
    result = coterie.run("fedavg", two_phases(), model="mlp:hidden=3", rounds=4, workers=1)
    assert result.summary.ari == 0.0
    assert coterie.run("fedavg", two_phases(), model="mlp:hidden=3", rounds=2, workers=1).summary.ari is None


def test_other_engines_refuse_it() -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match="changes with time"):
        coterie.run("fedavg", two_phases(), model="mlp:hidden=3", rounds=2, engine="ray")


def test_groups_exchange_their_concepts_take_them_back_and_a_new_one_appears() -> None:
    federation = find_scenario("digits-drift").build(clients=8, seed=1)
    assert isinstance(federation, ChangingFederation)
    assert list(federation.phases) == [1, EXCHANGE, RETURN, NEW_GROUP]
    groups = [federation.at(t).groups for t in federation.phases]
    first = groups[0]
    assert first is not None
    assert sorted(first) == [0] * 4 + [1] * 4
    assert groups[1] == [1 - g for g in first]
    assert groups[2] == first
    assert groups[3] is not None
    assert sorted(groups[3]) == [0, 0, 1, 1, 1, 1, 2, 2]
    for client in federation.ids:
        a, b, c = (federation.at(t)[client] for t in (1, EXCHANGE, RETURN))
        assert c is a
        assert torch.equal(a.train.x, b.train.x)
        assert not (a.train.y == b.train.y).any()  # permutations that agree on no label
    with pytest.raises(ConfigError, match="2 groups of 2 clients"):
        find_scenario("digits-drift").build(clients=3, groups=2)


def test_of_many_clients_whose_data_changed_five_are_named() -> None:
    clients = [f"c{i}" for i in range(7)]
    [event] = changed_event(clients)
    assert event.text == "other data from this round on: c0, c1, c2, c3, c4 and 2 more"
    assert event.details == {"clients": clients}
    assert changed_event(clients[:5])[0].text.endswith(": c0, c1, c2, c3, c4")
    assert not changed_event([])
