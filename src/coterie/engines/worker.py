"""A worker process: it takes blocks of requests, does them on one thread, and sends the replies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from coterie.engines.buffers import TensorBuffer, attach, pack, unpack
from coterie.engines.heap import keep_freed_memory
from coterie.engines.spawning import unpack_inheritance
from coterie.tasks.base import ClientContext, perform
from coterie.trainers.base import Trainer

NUMBER_BYTES = 8
"""Length of the number before every message: the slot of a block, or the bytes its replies take there."""
PR_SET_PDEATHSIG = 1
"""Linux's name for: send this process a signal when its parent ends."""
LOOK_FOR_PARENT = 1.0
"""Seconds between a waiting worker's looks at whether its parent still lives."""


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, however busy it is; elsewhere it looks by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def work(
    connection: Connection,
    inherited: bytes | tuple[Mapping[str, ClientContext], Callable[[], Trainer]],
    path: str,
    slots: int,
    slot_bytes: int,
    broadcast_bytes: int,
) -> None:
    """A worker's life. It ends without a word: what went wrong shows when the parent does the block itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    code = 1
    try:
        torch.set_num_threads(1)
        keep_freed_memory()
        contexts, make_trainer = unpack_inheritance(inherited) if isinstance(inherited, bytes) else inherited
        memory = attach(path, slots * slot_bytes + broadcast_bytes)
        _serve(connection, contexts, make_trainer(), memory, slots, slot_bytes)
        code = 0
    finally:
        os._exit(code)


def _serve(
    connection: Connection,
    contexts: Mapping[str, ClientContext],
    trainer: Trainer,
    memory: Tensor,
    slots: int,
    slot_bytes: int,
) -> None:
    """Do blocks until asked to stop, or until the parent is gone."""
    parent = os.getppid()
    broadcast = memory[slots * slot_bytes :]
    while True:
        while not connection.poll(LOOK_FOR_PARENT):
            if os.getppid() != parent:
                return
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        if not message:
            return
        number = int.from_bytes(message[:NUMBER_BYTES], "little")
        slot = memory[number * slot_bytes : (number + 1) * slot_bytes]
        requests, states, reduce = unpack(message[NUMBER_BYTES:], slot, broadcast)
        for request in requests:
            state = contexts[request.client].state
            state.clear()
            # Copies, because the replies will be written over the slot that the states came in.
            state.update({name: value.clone() for name, value in states.get(request.client, {}).items()})
        done = perform(requests, contexts, trainer, reduce)
        after = {r.client: dict(contexts[r.client].state) for r in requests if contexts[r.client].state}
        buffer = TensorBuffer(slot, aligned=False)
        data = pack((done, after), buffer)
        connection.send_bytes(buffer.used.to_bytes(NUMBER_BYTES, "little") + data)
