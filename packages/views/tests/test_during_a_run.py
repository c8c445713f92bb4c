"""While a run goes on, the page shows every client with its cluster, whatever the method keeps in its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import coterie
from coterie.methods import Assignment, ClusterSplit, Info, Method, Server, make_method, method_classes
from coterie.runs.records import RoundRecord
from coterie.snapshot import saved
from coterie_views.live.library import Library

OPTIONS: dict[str, Any] = {
    "scenario": "digits-permuted",
    "clients": 8,
    "groups": 2,
    "model": "mlp:hidden=4",
    "workers": 1,
}
METHODS = {
    "cfl": ("cfl", 30),
    "fedcuau": ("fedcuau:clusters=2", 3),
    "fedsem": ("fedsem:clusters=3", 3),
    "flhc": ("flhc:warmup_rounds=1", 3),
    "groups": ("groups:of={'client-0':'a','client-1':'b'}", 3),
    "ifca": ("ifca:k=4", 4),
    "oneshot": ("oneshot:k=2,warmup_rounds=3", 5),
}
"""What shows something in few rounds."""


class Watching:
    """A method that does as another does and remembers what it last said of the clients."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.now: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)  # finish, if the method has one

    def start(self, server: Server) -> Any:
        return self.method.start(server)

    def round(self, state: Any, t: int, server: Server) -> tuple[Any, Info]:
        self.now = {}
        return self.method.round(state, t, server)

    def assignment(self, state: Any, server: Server) -> Assignment:
        found = self.method.assignment(state, server)
        self.now = {client: number for client, number, *_ in found.served()}
        return found


class Onlooker:
    """Looks at the live page after every round and keeps what it says of the clients."""

    def __init__(self, folder: Path, method: Watching) -> None:
        self.folder, self.method = folder, method
        self.library: Library | None = None
        self.seen: list[tuple[int, dict[str, int]]] = []

    def on_start(self, run: Any, done: int) -> None:
        self.library = Library(self.folder)

    def on_event(self, t: int, event: Any) -> None: ...

    def on_end(self, result: Any) -> None: ...

    def on_round(self, record: RoundRecord) -> None:
        assert self.library is not None
        self.library.poll()
        watched = self.library.runs["."]
        assert watched.status == "running"
        shown = {row["client"]: row["cluster"] for row in watched.clients()["rows"]}
        self.seen.append((record.round, shown))
        if record.metrics and not record.participants_only:
            assert shown == self.method.now
            assert len(shown) == OPTIONS["clients"]


def follow(method: Method, folder: Path, rounds: int, **more: Any) -> Onlooker:
    watching = Watching(method)
    onlooker = Onlooker(folder, watching)
    coterie.run(watching, rounds=rounds, out=folder, callbacks=[onlooker], **OPTIONS, **more)
    return onlooker


@pytest.mark.parametrize("name", sorted(method_classes()))
def test_every_client_is_shown_in_every_round(name: str, tmp_path: Path) -> None:
    method, rounds = METHODS.get(name, (name, 2))
    onlooker = follow(make_method(method), tmp_path / "run", rounds)
    assert [t for t, _ in onlooker.seen] == list(range(1, rounds + 1))
    if name == "oneshot":  # alone in the warm-up, in two clusters after it
        assert [len(set(shown.values())) for _, shown in onlooker.seen] == [8, 8, 2, 2, 2]
    if name == "cfl":
        assert set(onlooker.seen[0][1].values()) == {0}
        assert set(onlooker.seen[-1][1].values()) == {1, 2}


def test_between_evaluations_the_last_one_is_shown(tmp_path: Path) -> None:
    onlooker = follow(make_method("ifca:k=2"), tmp_path / "run", 5, evaluate_every=2)
    assert [len(shown) for _, shown in onlooker.seen] == [0, 8, 8, 8, 8]
    sampled = follow(make_method("ifca:k=2"), tmp_path / "sampled", 5, participation=0.5)
    assert [len(shown) for _, shown in sampled.seen] == [0, 8, 8, 8, 8]


@saved
class Baskets:
    """Names that nobody else has; one field is called as those of other methods, and means something else."""

    tree: str
    labels: dict[str, str]
    fruit: Tensor


class Wanderers:
    """Every client moves to another cluster in every round; cluster 10 splits in round 3, without an event."""

    def start(self, server: Server) -> Baskets:
        return Baskets("an oak", {"a": "b"}, server.initial_model())

    def round(self, state: Baskets, t: int, server: Server) -> tuple[Baskets, Info]:
        state = Baskets(f"{state.tree}, {t}", state.labels, state.fruit)
        half = [server.clients[:4], server.clients[4:]]
        return state, Info(splits=[ClusterSplit(10, (21, 20), half)] if t == 3 else [])

    def assignment(self, state: Baskets, server: Server) -> Assignment:
        t = state.tree.count(",")
        models = [state.fruit, state.fruit]
        if t < 3:
            return Assignment(models, [server.clients[t:], server.clients[:t]], ids=(10, 11))
        return Assignment(models, [server.clients[4:], server.clients[:4]], ids=(20, 21))


def test_a_method_of_ones_own_shows_its_clients_and_its_splits(tmp_path: Path) -> None:
    onlooker = follow(Wanderers(), tmp_path / "run", 4)
    assert [list(shown.values()).count(11) for _, shown in onlooker.seen] == [1, 2, 0, 0]
    assert onlooker.seen[3][1] == {f"client-{i}": 21 if i < 4 else 20 for i in range(8)}
    assert onlooker.library is not None
    onlooker.library.poll()
    tree = onlooker.library.runs["."].detail(None, 0)["tree"]
    assert [(node["id"], node["parent"]) for node in tree] == [(10, None), (11, None), (20, 10), (21, 10)]
    rows = onlooker.library.runs["."].clients()["rows"]
    assert {row["client"]: row["cluster"] for row in rows} == onlooker.seen[3][1]
    assert all(row["test_samples"] > 0 and row["loss"] > 0 for row in rows)
