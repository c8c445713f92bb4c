"""Checks and fingerprints of many small clients at once find what they would find in each alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.errors import DataError
from coterie.federation import Client, Federation, Split
from coterie.federation import client as federation_client
from coterie.federation.fingerprint import fingerprint


def clients(count: int, n: int = 4) -> list[Client]:
    generator = torch.Generator().manual_seed(0)

    def split(size: int) -> Split:
        return Split(torch.randn(size, 3, generator=generator), torch.randint(5, (size,), generator=generator))

    return [Client(f"c{i}", split(n + i % 3), split(i % 2), split(2)) for i in range(count)]


@pytest.mark.parametrize("together", [1, 40, 10**6])
@pytest.mark.parametrize(("part", "what"), [("train", "x"), ("test", "x"), ("validation", "y"), ("test", "y")])
def test_the_client_with_a_bad_number_is_named(
    together: int, part: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_client, "JOINED", together)
    some = clients(30)
    values = getattr(some[17].part(part), what)
    values.view(-1)[-1] = float("nan") if what == "x" else 7
    with pytest.raises(DataError, match=f"'c17', {part}"):
        Federation(some, 5)


@pytest.mark.parametrize("together", [1, 40, 10**6])
def test_classes_are_counted_over_all_clients(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation_client, "JOINED", together)
    some = clients(30)
    some[11].train.y[0] = 8
    assert Federation(some).classes == 9


def test_numbers_too_large_to_add_up_are_no_fault() -> None:
    some = clients(30)
    for client in some:
        client.train.x.fill_(3e38)
    assert len(Federation(some, 5)) == 30


def test_a_fingerprint_sees_one_number_of_one_client_and_where_it_is() -> None:
    seen = {fingerprint(Federation(clients(30), 5))}
    for position in (0, 13, 29):
        for part, what in (("train", "x"), ("train", "y"), ("validation", "x"), ("test", "y")):
            some = clients(30)
            values = getattr(some[position].part(part), what)
            if len(values):
                values.view(-1)[0] = 3 if what == "y" and values.view(-1)[0] != 3 else 4
                seen.add(fingerprint(Federation(some, 5)))
    assert len(seen) >= 11
    moved = clients(30)
    moved[3], moved[6] = moved[6], moved[3]
    assert fingerprint(Federation(moved, 5)) not in seen
    assert fingerprint(Federation(clients(30), 5)) in seen


def test_a_fingerprint_is_that_of_the_samples_not_of_how_they_are_dealt() -> None:
    """The same numbers with another border between two clients are another federation."""
    x, y = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    empty = Split(x[:0], y[:0])

    def dealt(border: int) -> str:
        parts = (Split(x[:border], y[:border]), Split(x[border:], y[border:]))
        return fingerprint(Federation([Client(str(i), part, empty, empty) for i, part in enumerate(parts)], 2))

    assert dealt(3) != dealt(5)


class Operations(TorchDispatchMode):
    """Counts the tensor operations made while it is entered."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_setting_up_needs_fewer_tensor_operations_than_clients() -> None:
    """An operation for each part of each client would take 300 microseconds per client; clients are joined instead."""
    some = clients(2000)
    with Operations() as operations:
        fingerprint(Federation(some, 5))
    assert 0 < operations.count < len(some)


def test_samples_that_are_slices_share_memory_but_keep_no_record_of_the_whole() -> None:
    """Such a record is larger than the samples of a small client; a million clients have millions of them."""
    x, y = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    split = Split(x[2:5], y[2:5])
    assert not split.x._is_view()
    assert not split.y._is_view()
    x[3, 1] = 7
    assert split.x[1, 1] == 7
    assert Split(x, y).x is x
