"""Flower messages: tasks and replies with spoilt fields, arrays and bytes."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coterie.flower.wire import Packer, open_reply, pack_reply, unpack_task
from coterie.models import build
from coterie.parameters import Layout
from coterie.tasks import Choose, Evaluate, Train
from coterie.tasks.base import Reply, Task
from coterie.tasks.wire import BadReply
from coterie.trainers.base import Training

from .harness import Finding, Trial
from .mutations import spoilt, value

LAYOUT = Layout.of(build("mlp:hidden=3", (4,), 2, 0))
HOW = Training(lr=0.3, steps=2, batch_size=None)


class Messages:
    """A task on its way to a client, or a reply on its way back, with something changed."""

    name = "messages"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        """Tasks and replies that are sound."""
        model = torch.ones(LAYOUT.size)
        tasks: list[Task] = [Train(model, HOW, 1), Choose(torch.stack([model, -model]), HOW, 2), Evaluate(model[None])]

        def trial(random: random.Random) -> str:
            task = random.choice(tasks)
            if random.random() < 0.5:
                records = _copy(Packer({"classes": 2}, LAYOUT).pack(task))
                _spoil(records, random)
                unpack_task(records, LAYOUT, lambda seed: torch.zeros(LAYOUT.size))
                return "accepted"
            schema = task.schema(LAYOUT)
            values = {"loss": 0.5, "norm": 1.0, "losses": [0.5, 0.5], "accuracy": [0.5]}
            values |= {"loss": [0.5]} if isinstance(task, Evaluate) else {}
            sound = Reply("", 0, model if schema.vector else None, values, 0)
            records = _copy(pack_reply(sound, schema))
            _spoil(records, random)
            try:
                reply = open_reply(records, schema)
            except BadReply:
                return "refused"
            if reply.vector is not None and not torch.isfinite(reply.vector).all():
                raise Finding("a vector that is not finite was taken")
            return "accepted"

        yield trial


def _copy(records: RecordDict) -> RecordDict:
    """Records of their own: arrays are shared between messages."""
    copied = RecordDict()
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            own = ArrayRecord()
            for key, array in record.items():
                own[key] = Array(array.dtype, tuple(array.shape), array.stype, bytes(array.data))
            copied[name] = own
        else:
            copied[name] = type(record)(dict(record))
    return copied


def _spoil(records: RecordDict, random: random.Random) -> None:
    name = random.choice(list(records))
    record: Any = records[name]
    if random.random() < 0.1 or not len(record):
        del records[name]
        return
    key = random.choice(list(record))
    if isinstance(record, ArrayRecord):
        array = record[key]
        how = random.choice(["data", "shape", "dtype", "remove", "stype"])
        shape = tuple(random.choice([0, 1, -1, 10**12, *array.shape]) for _ in range(random.randint(0, 3)))
        if how == "remove":
            del record[key]
        else:
            record[key] = Array(
                "float64" if how == "dtype" else array.dtype,
                shape if how == "shape" else tuple(array.shape),
                "pickle" if how == "stype" else array.stype,
                spoilt(array.data, random) if how == "data" else array.data,
            )
    elif isinstance(record, ConfigRecord) and isinstance(record[key], str):
        text = str(record[key])
        record[key] = (
            _spoilt_json(text, random) if random.random() < 0.5 else spoilt(text.encode(), random).decode("latin1")
        )
    elif isinstance(record, MetricRecord | ConfigRecord):
        found = value(random)
        if isinstance(found, int) and not -(2**63) <= found < 2**63:
            found = 2**62
        with contextlib.suppress(TypeError, ValueError):  # Flower itself refuses it
            record[key] = found


def _spoilt_json(text: str, random: random.Random) -> str:
    """The JSON with one of its values, at any depth, replaced."""
    try:
        tree = json.loads(text)
    except ValueError:
        return text + "x"
    node, parents = tree, []
    while isinstance(node, dict | list) and node and (not parents or random.random() < 0.8):
        key: Any = random.choice(list(node)) if isinstance(node, dict) else random.randrange(len(node))
        parents.append((node, key))
        node = node[key]
    if parents:
        holder, key = parents[-1]
        holder[key] = value(random)
    return json.dumps(tree)
