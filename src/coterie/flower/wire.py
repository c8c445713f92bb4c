"""Tasks and replies as Flower records, and the check that every reply must pass before it may enter a sum.

A task travels as its name, its plain fields as JSON and its tensors as float32 arrays; a reply as one vector and a
few numbers. Nothing is pickled, and nothing that comes in is believed: what is not exactly as expected is refused
with a reason in words.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from coterie.embedding import Embed
from coterie.errors import ConfigError
from coterie.messages import Reply, Task
from coterie.parameters import Layout, span_size
from coterie.personalisation import Personalise
from coterie.stages import LayerUpdate, StagedTraining, trainable_spans
from coterie.tasks import Choose, Evaluate, Gradient, Noise, Train
from coterie.workbench import Training

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (Train, Evaluate, Gradient, Noise, Choose, LayerUpdate, StagedTraining, Embed, Personalise)
}
"""The tasks that can travel."""
NUMPY = "numpy.ndarray"
"""Flower's name for arrays in NumPy's own file format."""
HEADER_BYTES = 512
"""More than NumPy's header of a plain array takes."""
REASON_LETTERS = 300
MOST_BYTES = 2**50
"""A count of bytes above this is no count."""


class BadReply(ValueError):
    """A reply that must not be used; its text is the reason."""


def pack_array(tensor: Tensor) -> Array:
    """A tensor as float32 in NumPy's format."""
    return Array(tensor.detach().to(torch.float32).contiguous().numpy())


def open_array(array: Array, shape: tuple[int, ...] | None = None) -> Tensor:
    """The float32 tensor in an array; BadReply unless it holds exactly what it says (and has the `shape`, if given).

    Sizes are compared before anything is read, so that a false header cannot make this allocate.
    """
    said = tuple(array.shape)
    if array.stype != NUMPY or array.dtype != "float32":
        raise BadReply(f"an array is {array.dtype} ({array.stype}), expected float32")
    if shape is not None and said != shape:
        raise BadReply(f"an array has shape {said}, expected {shape}")
    size = math.prod(said)
    if min(said, default=0) < 0 or not 4 * size < len(array.data) <= 4 * size + HEADER_BYTES:
        raise BadReply(f"an array of shape {said} has {len(array.data)} bytes")
    file = BytesIO(array.data)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise BadReply("an array is in another version of NumPy's format")
        written, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as problem:
        raise BadReply("an array's header cannot be read") from problem
    if written != said or fortran or dtype != np.dtype("<f4") or len(array.data) - file.tell() != 4 * size:
        raise BadReply("an array's header and its bytes do not agree")
    values = np.frombuffer(array.data, "<f4", offset=file.tell()).reshape(said)
    return torch.from_numpy(values.astype(np.float32, copy=True))


class Packer:
    """Turns tasks into records; a tensor that goes to many clients becomes one array.

    `seed_of` tells the seed that an initial model was drawn from, where it is known: a LayerUpdate then travels
    without its model, with a checksum of it.
    """

    def __init__(self, header: Mapping[str, Any], seed_of: Callable[[Tensor], int | None] = lambda _: None) -> None:
        self.header = dict(header)
        self.seed_of = seed_of
        self._arrays: dict[int, tuple[Tensor, Array]] = {}

    def pack(self, task: Task) -> RecordDict:
        """The task as records."""
        name = type(task).__name__
        if KINDS.get(name) is not type(task) or not dataclasses.is_dataclass(task):
            raise ConfigError(f"a task {name} cannot be sent over Flower: known are {', '.join(KINDS)}")
        plain: dict[str, Any] = {}
        arrays = ArrayRecord()  # filled one by one: made from a dict, it would copy what many messages share
        for entry in dataclasses.fields(task):
            value = getattr(task, entry.name)
            if isinstance(value, Tensor):
                seed = self.seed_of(value) if isinstance(task, LayerUpdate) else None
                if seed is None:
                    arrays[entry.name] = self._array(value)
                else:
                    plain[entry.name] = {"draw": seed, "checksum": checksum(value)}
            else:
                plain[entry.name] = dataclasses.asdict(value) if isinstance(value, Training) else value
        config = ConfigRecord(self.header | {"kind": name, "fields": json.dumps(plain)})
        return RecordDict({"task": config, "tensors": arrays})

    def _array(self, tensor: Tensor) -> Array:
        # The tensor is kept beside its array, so that its id stays its own.
        if id(tensor) not in self._arrays:
            self._arrays[id(tensor)] = (tensor, pack_array(tensor))
        return self._arrays[id(tensor)][1]


def unpack_task(records: RecordDict, draw: Callable[[int], Tensor]) -> Task:
    """The task in the records; `draw` makes an initial model from a seed. ConfigError where there is none."""
    try:
        config, arrays = records["task"], records["tensors"]
        kind = KINDS[str(config["kind"])]
        plain = json.loads(str(config["fields"]))
        values = {name: _plain(name, value, draw) for name, value in plain.items()}
        tensors = {str(name): open_array(array) for name, array in arrays.items()}  # type: ignore[arg-type]
        task: Task = kind(**values, **tensors)
    except (KeyError, TypeError, ValueError) as problem:
        raise ConfigError(
            f"this message holds no task ({problem}): use the same version of coterie everywhere"
        ) from problem
    return task


def _plain(name: str, value: Any, draw: Callable[[int], Tensor]) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict) and "draw" in value:
        model = draw(int(value["draw"]))
        if checksum(model) != value["checksum"]:
            raise ConfigError(
                f"seed {value['draw']} gives another model here: use the same version of torch everywhere"
            )
        return model
    if isinstance(value, dict):
        fields: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
        return Training(**fields)
    return value


def checksum(tensor: Tensor) -> str:
    """A short hash of a tensor's numbers in float32."""
    return hashlib.blake2b(tensor.detach().to(torch.float32).contiguous().numpy().tobytes(), digest_size=8).hexdigest()


def layout_mark(layout: Layout) -> str:
    """A short hash of a model's tensors, their names, shapes and places."""
    return hashlib.blake2b(repr(layout.entries).encode(), digest_size=8).hexdigest()


def pack_reply(reply: Reply) -> RecordDict:
    """A client's reply as records: one vector at most, and numbers."""
    numbers = {name: value for name, value in reply.values.items() if name != "norm"}
    records = RecordDict({"values": MetricRecord({**numbers, "group": reply.group, "up": reply.up})})
    if reply.vector is not None:
        records["vector"] = ArrayRecord({"vector": pack_array(reply.vector)})
    return records


def pack_refusal(reason: str) -> RecordDict:
    """What a client sends that cannot do its task, and can say why."""
    return RecordDict({"refusal": ConfigRecord({"reason": reason})})


Values = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    """What a sound reply looks like."""

    vector: int | None = None
    """How many numbers the vector has; None: there is none."""
    numbers: tuple[str, ...] = ()
    """Names of single numbers."""
    lists: Mapping[str, int] = field(default_factory=dict)
    """Names of lists and the most numbers each may have."""
    check: Callable[[Values], str | None] = lambda values: None
    """What else is wrong with the values, if anything."""
    groups: int = 1
    """How many models there are to choose from."""


def expected_of(task: Task, layout: Layout) -> Expected:
    """What a sound reply to the task looks like."""
    vector = ("loss",)
    if isinstance(task, Train):
        return Expected(layout.size, (*vector, "start_loss") if task.assess else vector, check=_finite)
    if isinstance(task, Gradient):
        return Expected(layout.size, vector, check=_finite)
    if isinstance(task, LayerUpdate):
        return Expected(span_size(trainable_spans(layout, task.layers)), vector, check=_finite)
    if isinstance(task, StagedTraining):
        return Expected(layout.size + task.specific.numel(), vector, check=_finite)
    if isinstance(task, Choose):
        k = len(task.models)
        return Expected(layout.size, vector, {"losses": k}, lambda v: _finite(v) or _full(v, k, "losses"), k)
    if isinstance(task, Evaluate | Personalise):
        k = len(task.models) if isinstance(task, Evaluate) else 2
        return Expected(None, (), {"loss": k, "accuracy": k}, lambda v: _full(v, k, "loss", "accuracy"))
    if isinstance(task, Noise):
        return Expected(None, ("noise",), check=lambda v: None if v["noise"] >= 0 else "its noise is no distance")
    if isinstance(task, Embed):
        k, code = task.k, task.code
        return Expected(None, ("count",), {"centroids": k * code}, lambda v: _centroids(v, k, code))
    raise ConfigError(f"a task {type(task).__name__} cannot be sent over Flower: known are {', '.join(KINDS)}")


def _finite(values: Values) -> str | None:
    names = [name for name in ("loss", "start_loss") if name in values and not math.isfinite(values[name])]
    return f"its {names[0].replace('_', ' ')} is not finite: lower the learning rate" if names else None


def _full(values: Values, k: int, *names: str) -> str | None:
    short = [name for name in names if len(values[name]) != k]
    return f"it sent {len(values[short[0]])} numbers as {short[0]}, expected {k}" if short else None


def _centroids(values: Values, k: int, code: int) -> str | None:
    count = values["count"]
    if not isinstance(count, int) or not 1 <= count <= k or len(values["centroids"]) != count * code:
        return f"it sent {len(values['centroids'])} numbers as {count} centroids of {code}, at most {k}"
    return None if all(map(math.isfinite, values["centroids"])) else "a centroid is not finite"


def open_reply(records: RecordDict, expected: Expected) -> tuple[Tensor | None, Values]:
    """The vector and the values of a reply that is exactly as expected; BadReply with the reason for any other."""
    if "refusal" in records:
        refusal = records["refusal"]
        told = refusal.get("reason", "") if isinstance(refusal, ConfigRecord) else ""
        raise BadReply(in_words(told) or "it refused without a reason")
    names = {"values"} if expected.vector is None else {"values", "vector"}
    if set(records) != names:
        raise BadReply(f"it sent records {_listed(records)}, expected {_listed(names)}")
    values = _open_values(records["values"], expected)
    if reason := expected.check(values):
        raise BadReply(reason)
    if expected.vector is None:
        return None, values
    return open_vector(records["vector"], expected.vector), values


def open_vector(record: Any, size: int) -> Tensor:
    """The one finite vector `(size,)` of a record; BadReply for anything else."""
    if not isinstance(record, ArrayRecord) or set(record) != {"vector"}:
        names = _listed(record) if isinstance(record, ArrayRecord) else type(record).__name__
        raise BadReply(f"it sent arrays {names}, expected one: vector")
    vector = open_array(record["vector"], (size,))
    if not torch.isfinite(torch.linalg.vector_norm(vector)):  # numbers that overflow when squared count as infinite
        raise BadReply("its update is not finite: lower the learning rate")
    return vector


def check_reply(records: RecordDict, expected: Expected) -> str | None:
    """Why a reply must not be used, or None when it is sound."""
    try:
        open_reply(records, expected)
    except BadReply as problem:
        return str(problem)
    return None


def _open_values(record: Any, expected: Expected) -> Values:
    if not isinstance(record, MetricRecord):
        raise BadReply(f"its values are a {type(record).__name__}, expected numbers")
    names = {*expected.numbers, *expected.lists, "group", "up"}
    if set(record) != names:
        raise BadReply(f"it sent values {_listed(record)}, expected {_listed(names)}")
    values = dict(record)
    for name, value in values.items():
        most = expected.lists.get(name)
        if most is None and isinstance(value, list):
            raise BadReply(f"it sent a list as {name}, expected a number")
        if most is not None and (not isinstance(value, list) or len(value) > most):
            raise BadReply(f"it sent {name} not as a list of at most {most} numbers")
    group, up = values["group"], values["up"]
    if not isinstance(group, int) or not 0 <= group < expected.groups:
        raise BadReply(f"it chose model {group} of {expected.groups}")
    if not isinstance(up, int) or not 0 <= up < MOST_BYTES:
        raise BadReply(f"it says it sent {up} bytes")
    return values


def _listed(names: Any) -> str:
    return in_words(", ".join(sorted(map(str, names)))) or "none"


def in_words(text: Any) -> str:
    """Text from outside as one short line that is safe to print."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[: 20 * REASON_LETTERS]).split())
    return line if len(line) <= REASON_LETTERS else line[: REASON_LETTERS - 1] + "…"
