"""How worker processes are started, and what a spawned one must be sent because it inherits nothing."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping

from coterie.engines.ray_worker import deserialise_shard, serialise_shard
from coterie.errors import ConfigError, RunError
from coterie.models.custom import load_files, loaded_files
from coterie.tasks.base import ClientContext
from coterie.trainers.base import Trainer

VARIABLE = "COTERIE_START_METHOD"
METHODS = ("fork", "spawn")


def start_method() -> str:
    """How workers are started: fork on Linux, spawn elsewhere, unless COTERIE_START_METHOD says otherwise."""
    given = os.environ.get(VARIABLE) or ("fork" if sys.platform == "linux" else "spawn")
    if given not in METHODS:
        raise ConfigError(f"{VARIABLE}={given!r}: expected fork or spawn")
    return given


def pack_inheritance(contexts: Mapping[str, ClientContext], make_trainer: Callable[[], Trainer]) -> bytes:
    """The clients and the trainer for a process that inherits nothing."""
    try:
        trainer = pickle.dumps(make_trainer)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise RunError(
            f"spawned workers cannot be sent the model, the loss or a metric ({problem}): define them at "
            "the top of a module, or use workers=1"
        ) from problem
    clients = serialise_shard([context.client for context in contexts.values()])
    return pickle.dumps((loaded_files(), trainer, clients))


def unpack_inheritance(packed: bytes) -> tuple[dict[str, ClientContext], Callable[[], Trainer]]:
    """What `pack_inheritance` was given."""
    files, trainer, clients = pickle.loads(packed)
    load_files(files)
    make_trainer: Callable[[], Trainer] = pickle.loads(trainer)
    return {client.id: ClientContext(client, {}) for client in deserialise_shard(*clients)}, make_trainer
