"""Small messages travel in few parts, with the same results, and what claims to be folded is checked like the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from flower_trials import MODEL, QUICK, TRAINING, digits, grid_of, tampering
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from coterie.federation import Federation
from coterie.flower import InProcessGrid, client_app
from coterie.flower.exchange import Exchange
from coterie.flower.folding import FOLDED, fold, unfold
from coterie.flower.server import run_on
from coterie.flower.wire import open_array, pack_array
from coterie.tasks.wire import BadReply

RUN = TRAINING | {"method": "ifca:k=2", "rounds": 2} | QUICK


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


class WatchedGrid(InProcessGrid):
    """Keeps what crosses it, and the keys that were looked for."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.tasks: list[RecordDict] = []
        self.replies: list[RecordDict] = []
        self.looks: list[str] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.tasks += [m.content for m in messages if m.metadata.message_type == "query.coterie"]
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        keys = list(message_ids)
        self.looks += keys
        found = super().pull_messages(keys)
        self.replies += [m.content for m in found if m.metadata.message_type == "query.coterie"]
        return found


def watched(federation: Federation) -> WatchedGrid:
    return WatchedGrid(client_app(MODEL, federation), node_configs=[{"client": c} for c in federation.ids])


def records_of(size: int) -> RecordDict:
    arrays = ArrayRecord({"a": pack_array(torch.arange(float(size))), "b": pack_array(torch.ones(2, 3))})
    return RecordDict({"values": MetricRecord({"loss": 0.5}), "arrays": arrays})


def test_arrays_come_back_as_they_were_and_share_one_record_on_the_way() -> None:
    records = records_of(5)
    folded = fold(records, 10_000)
    assert set(folded) == {"values", FOLDED + "arrays"}
    assert isinstance(folded[FOLDED + "arrays"], ConfigRecord)
    back = unfold(folded)
    assert set(back) == {"values", "arrays"}
    for name, array in records["arrays"].items():
        assert back["arrays"][name].shape == array.shape
        assert torch.equal(open_array(back["arrays"][name]), open_array(array))


def test_what_is_larger_stays_as_it_is() -> None:
    records = records_of(100)
    size = sum(len(array.data) for array in records["arrays"].values())
    assert fold(records, size - 1)["arrays"] is records["arrays"]
    assert "arrays" not in fold(records, size)
    assert set(fold(records, 0)) == set(records)
    empty = RecordDict({"tensors": ArrayRecord()})
    assert fold(empty, 0)["tensors"] is empty["tensors"]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (MetricRecord({"vector": 1.0}), "MetricRecord"),
        (ConfigRecord({"vector": "text"}), "str"),
        (ConfigRecord({"vector": b"PK\x03\x04 no array"}), "NumPy's format"),
        (ConfigRecord({"vector": b"\x93NUMPY\x02\x00" + bytes(200)}), "NumPy's format"),
    ],
)
def test_what_only_claims_to_be_folded_is_refused(record: Any, why: str) -> None:
    with pytest.raises(BadReply, match=why):
        unfold(RecordDict({FOLDED + "arrays": record}))


def test_a_run_gives_the_same_models_and_counts_the_same_bytes_in_fewer_parts(federation: Federation) -> None:
    grid = watched(federation)
    plain, folded = run_on(grid_of(federation), RUN), run_on(grid, RUN | {"fold_bytes": 2**20})
    for one, other in zip(plain.models, folded.models, strict=True):
        assert torch.equal(one, other)
    assert [record.bytes for record in plain.history] == [record.bytes for record in folded.history]
    crossed = [*grid.tasks, *grid.replies]
    assert len(grid.tasks) == len(grid.replies) > 0
    assert not [records for records in crossed if records.array_records]


def test_a_client_that_sends_no_array_is_a_fault_and_not_a_crash(federation: Federation) -> None:
    def spoilt(message: Message) -> Message:
        for name in [name for name in message.content if name.startswith(FOLDED)]:
            message.content[name] = ConfigRecord({"vector": b"no array"})
        return message

    grid = grid_of(federation, tamper=tampering(1001, spoilt))
    result = run_on(grid, RUN | {"rounds": 1, "fold_bytes": 2**20})
    reasons = {fault.reason for record in result.history for fault in record.faults if fault.client == "client-0"}
    assert reasons == {"an array is not written in NumPy's format"}


def test_no_answer_is_looked_for_twice_where_all_are_there(federation: Federation) -> None:
    grid = watched(federation)
    messages = [
        Message(RecordDict({"task": ConfigRecord({"classes": 0, "layout": ""})}), node, "query.coterie", ttl=60.0)
        for node in sorted(grid.contexts)
    ]
    exchange = Exchange(grid, 60.0, 0.01)
    answers = list(exchange.send(messages))
    assert len(answers) == len(messages) == 6
    assert [answer.content is not None for answer in answers] == [True] * 6  # refusals, but in words
    assert len(grid.looks) == 6  # every answer was there: none was looked for twice
