"""Tasks and replies as Flower records, and the check that every reply must pass before it may enter a sum.

What is sent is what `coterie.tasks.wire` says: plain fields as JSON, tensors as float32 arrays. Nothing is pickled, and
nothing that comes in is believed: what is not exactly as the task's schema says is refused with a reason in words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from coterie.errors import ConfigError
from coterie.flower.arrays import read_array
from coterie.parameters import Layout, complement, gather, scatter, span_size
from coterie.tasks.base import Array as ArraySchema
from coterie.tasks.base import Reply, ReplySchema, Task
from coterie.tasks.wire import (
    BadReply,
    Draw,
    SentTensor,
    check_values,
    checksum,
    decode,
    drawn_part,
    encode,
    in_words,
    listed,
)

VECTOR = "vector"
"""Name of the array that holds a reply's vector."""
GROUP = "group"
"""Name of the number of the model that a client chose."""


def pack_array(tensor: Tensor) -> Array:
    """A tensor as float32 in NumPy's format."""
    return Array(tensor.detach().to(torch.float32).contiguous().numpy())


def open_array(array: Array, shape: tuple[int, ...] | None = None) -> Tensor:
    """The float32 tensor in an array; BadReply unless it holds exactly what it says (and has the `shape`, if given)."""
    values = read_array("sent", array, tuple(array.shape) if shape is None else shape, np.dtype(np.float32))
    return torch.from_numpy(values.astype(np.float32, copy=True))


class Packer:
    """Turns tasks into records; a tensor that goes to many clients becomes one array."""

    def __init__(self, header: Mapping[str, Any], layout: Layout) -> None:
        self.header, self.layout = dict(header), layout
        self._arrays: dict[Hashable, tuple[Tensor, Array]] = {}
        self._checksums: dict[Hashable, str] = {}

    def pack(self, task: Task) -> RecordDict:
        """The task as records."""
        fields, tensors, drawn = encode(task, self.layout)
        arrays = ArrayRecord()  # filled one by one: made from a dict, it would copy what many messages share
        for name, part in tensors.items():
            key = part.key()
            # The tensor is kept beside its array, so that its place in memory stays its own.
            if key not in self._arrays:
                self._arrays[key] = (part.tensor, pack_array(part.value(self.layout)))
            arrays[name] = self._arrays[key][1]
        seeds = {name: [seed, self._checksum(part)] for name, (seed, part) in drawn.items()}
        header = self.header | {"kind": task.kind(), "fields": json.dumps(fields), "drawn": json.dumps(seeds)}
        return RecordDict({"task": ConfigRecord(header), "tensors": arrays})

    def _checksum(self, part: SentTensor) -> str:
        key = part.key()
        if key not in self._checksums:
            self._checksums[key] = checksum(drawn_part(part))
        return self._checksums[key]


def unpack_task(records: RecordDict, layout: Layout, draw: Draw) -> Task:
    """The task in the records; `draw` makes an initial model from a seed. ConfigError where there is none."""
    try:
        config, arrays = records["task"], records["tensors"]
        kind, fields = str(config["kind"]), dict(json.loads(str(config["fields"])))
        drawn = {str(name): (int(seed), str(mark)) for name, (seed, mark) in json.loads(str(config["drawn"])).items()}
        tensors = {str(name): open_array(array) for name, array in arrays.items()}  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as problem:
        raise ConfigError(
            f"this message holds no task ({problem}): use the same version of coterie everywhere"
        ) from problem
    task = decode(kind, fields | {"drawn": {name: seed for name, (seed, _) in drawn.items()}}, tensors, layout, draw)
    for name, (seed, part) in encode(task, layout).drawn.items():
        if checksum(drawn_part(part)) != drawn[name][1]:
            raise ConfigError(f"seed {seed} gives another model here: use the same version of torch everywhere")
    return task


def layout_mark(layout: Layout) -> str:
    """A short hash of a model's tensors, their names, shapes and places."""
    return hashlib.blake2b(repr(layout.entries).encode(), digest_size=8).hexdigest()


def pack_reply(reply: Reply, schema: ReplySchema) -> RecordDict:
    """A client's reply as records: numbers, and arrays for all that is more than a number."""
    numbers: dict[str, Any] = {}
    arrays = ArrayRecord()
    for name, kind in schema.values.items():
        value = reply.values[name]
        if isinstance(kind, ArraySchema):
            arrays[name] = pack_array(value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64))
        else:
            numbers[name] = value
    if schema.choices > 1:
        numbers[GROUP] = reply.group
    if schema.vector is not None and reply.vector is not None:
        sent = gather(reply.vector, complement(schema.private, schema.vector)) if schema.private else reply.vector
        arrays[VECTOR] = pack_array(sent)
    records = RecordDict({"values": MetricRecord(numbers)})
    if arrays:
        records["arrays"] = arrays
    return records


def pack_refusal(reason: str) -> RecordDict:
    """What a client sends that cannot do its task, and can say why."""
    return RecordDict({"refusal": ConfigRecord({"reason": reason})})


def refuse_refusal(records: RecordDict) -> None:
    """BadReply with the reason where a client sent that it cannot do its task."""
    if "refusal" in records:
        refusal = records["refusal"]
        reason = refusal.get("reason", "") if isinstance(refusal, ConfigRecord) else ""
        raise BadReply(in_words(reason) or "it refused without a reason")


def open_reply(records: RecordDict, schema: ReplySchema) -> Reply:
    """The reply (without client and samples) that is exactly as the schema says; BadReply with the reason else."""
    refuse_refusal(records)
    kinds = _array_kinds(schema)
    names = {"values", "arrays"} if kinds else {"values"}
    if set(records) != names:
        raise BadReply(f"it sent records {listed(records)}, expected {listed(names)}")
    numbers = _open_numbers(records["values"], schema)
    arrays = _open_arrays(records["arrays"], kinds) if kinds else {}
    group = numbers.pop(GROUP, 0)
    if not isinstance(group, int) or not 0 <= group < schema.choices:
        raise BadReply(f"it chose model {group} of {schema.choices}")
    vector = _whole_vector(arrays.pop(VECTOR, None), schema)
    values = numbers | {name: array.tolist() if array.ndim == 1 else array for name, array in arrays.items()}
    check_values(values, schema)
    return Reply("", 0, vector, values, group)


def _whole_vector(sent: Tensor | None, schema: ReplySchema) -> Tensor | None:
    """The reply's vector, with zeros in the places that the client keeps to itself."""
    if sent is None:
        return None
    if not torch.isfinite(torch.linalg.vector_norm(sent)):
        # Numbers that overflow when squared count as infinite.
        raise BadReply("its update is not finite: lower the learning rate")
    if not schema.private:
        return sent
    whole = sent.new_zeros(schema.vector or 0)
    scatter(whole, complement(schema.private, len(whole)), sent)
    return whole


def _array_kinds(schema: ReplySchema) -> dict[str, ArraySchema]:
    """What each array of a reply must be, its vector included."""
    kinds = {name: kind for name, kind in schema.values.items() if isinstance(kind, ArraySchema)}
    if schema.vector is not None:
        kinds[VECTOR] = ArraySchema((schema.vector - span_size(schema.private),))
    return kinds


def _open_arrays(record: Any, kinds: Mapping[str, ArraySchema]) -> dict[str, Tensor]:
    if not isinstance(record, ArrayRecord) or set(record) != set(kinds):
        names = listed(record) if isinstance(record, ArrayRecord) else type(record).__name__
        raise BadReply(f"it sent arrays {names}, expected {listed(kinds)}")
    opened = {}
    for name, kind in kinds.items():
        shape = tuple(record[name].shape)
        if not kind.fits(shape):
            most = "at most " if kind.at_most else ""
            raise BadReply(f"it sent {name} of shape {shape}, expected {most}{kind.shape}")
        opened[name] = open_array(record[name], shape)
    return opened


def _open_numbers(record: Any, schema: ReplySchema) -> dict[str, Any]:
    if not isinstance(record, MetricRecord):
        raise BadReply(f"its values are a {type(record).__name__}, expected numbers")
    names = {name for name, kind in schema.values.items() if not isinstance(kind, ArraySchema)}
    names |= {GROUP} if schema.choices > 1 else set()
    if set(record) != names:
        raise BadReply(f"it sent values {listed(record)}, expected {listed(names)}")
    for name, value in record.items():
        if isinstance(value, list):
            raise BadReply(f"it sent a list as {name}, expected a number")
    return dict(record)
