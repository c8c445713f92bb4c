"""Small messages in few parts: Flower sends every record, array and piece of an array in requests of their own.

On its way a message travels part by part, up to six times over, and on a small model that is what a round
costs. Arrays that are small together travel as bytes in one record. Larger ones stay as they are: Flower sends them in
pieces, and what many clients share once.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from coterie.errors import CoterieError
from coterie.flower.arrays import NUMPY, numpy_header
from coterie.flower.wire import pack_refusal
from coterie.tasks.wire import BadReply

FOLDED = "folded "
"""Stands before the name of a record whose arrays travel as bytes."""


def fold(records: RecordDict, most: int) -> RecordDict:
    """The records, with the arrays of each that holds at most `most` bytes as bytes in one record.

    Args:
        records: A task or a reply, as `wire` packs it.
        most: Bytes of arrays that a record may hold to be folded; 0 folds none.

    Returns:
        A new RecordDict; records that are not folded are the same objects.
    """
    folded = RecordDict()
    for name, record in records.items():
        if isinstance(record, ArrayRecord) and 0 < sum(len(array.data) for array in record.values()) <= most:
            folded[FOLDED + name] = ConfigRecord({own: array.data for own, array in record.items()})
        else:
            folded[name] = record
    return folded


def unfold(records: RecordDict) -> RecordDict:
    """The records as they were before `fold`; records that were not folded are given as they are.

    Raises:
        BadReply: What claims to be a folded record holds something else than arrays.
    """
    unfolded = RecordDict()
    for name, record in records.items():
        if not name.startswith(FOLDED):
            unfolded[name] = record
        elif not isinstance(record, ConfigRecord):
            raise BadReply(f"a folded record is a {type(record).__name__}, expected bytes")
        else:
            unfolded[name.removeprefix(FOLDED)] = ArrayRecord({own: _array(data) for own, data in record.items()})
    return unfolded


def answering(action: Callable[[RecordDict, Context], RecordDict]) -> Callable[[Message, Context], Message]:
    """The action as a handler of messages; an error made on purpose goes back as a refusal in words."""

    def handle(message: Message, context: Context) -> Message:
        try:
            content = unfold(message.content)
            answer = fold(action(content, context), _fold_bytes(content))
        except (BadReply, CoterieError) as problem:
            answer = pack_refusal(str(problem))
        return Message(answer, reply_to=message)

    return handle


def _fold_bytes(records: RecordDict) -> int:
    """Up to how many bytes the server wants arrays folded."""
    header = records.get("task")
    most = header.get("fold", 0) if isinstance(header, ConfigRecord) else 0
    return most if isinstance(most, int) else 0


def _array(data: object) -> Array:
    """The array in NumPy's format, of the shape that its header says; `open_array` compares that with the bytes."""
    if not isinstance(data, bytes):
        raise BadReply(f"a folded array is a {type(data).__name__}, expected bytes")
    shape, _, _, _ = numpy_header(data)
    return Array("float32", shape, NUMPY, data)
