"""The life of a worker process: it takes blocks of orders, does them with one thread, and sends the replies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from coterie.engines.heap import keep_freed_memory
from coterie.engines.parcels import Shelf, attach, pack, unpack
from coterie.messages import Due, Order, Share, Worksite
from coterie.tasks import perform, perform_summed
from coterie.workbench import Workbench

NUMBER_BYTES = 8
"""Length of the number before every message: the slot of a block, or the bytes its replies take there."""
PR_SET_PDEATHSIG = 1
"""Linux's name for: send this process a signal when its parent ends."""
LOOK_FOR_PARENT = 1.0
"""Seconds between a waiting worker's looks at whether its parent still lives."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: the number of threads changes the last bits of sums."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, however busy it is; elsewhere it looks by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def work(
    connection: Connection,
    sites: Mapping[str, Worksite],
    make_bench: Callable[[], Workbench],
    path: str,
    slots: int,
    slot_bytes: int,
    board_bytes: int,
) -> None:
    """A worker's life. It ends without a word: what went wrong shows when the parent does the block itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    code = 1
    try:
        torch.set_num_threads(1)
        keep_freed_memory()
        memory = attach(path, slots * slot_bytes + board_bytes)
        _serve(connection, sites, make_bench(), memory, slots, slot_bytes)
        code = 0
    finally:
        os._exit(code)


def done(orders: Sequence[Order], bill: Sequence[Due] | None, sites: Mapping[str, Worksite], bench: Workbench) -> Share:
    """A block's replies with their vectors or, if there is a bill, with the vectors' sums."""
    if bill is None:
        return Share(perform(orders, sites, bench), {})
    return perform_summed(orders, bill, sites, bench)


def _serve(
    connection: Connection,
    sites: Mapping[str, Worksite],
    bench: Workbench,
    memory: Tensor,
    slots: int,
    slot_bytes: int,
) -> None:
    """Do blocks until told to stop, or until the parent is gone."""
    parent = os.getppid()
    board = memory[slots * slot_bytes :]
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
        orders, states, bill = unpack(message[NUMBER_BYTES:], slot, board)
        for order in orders:
            state = sites[order.client].state
            state.clear()
            # Copies, because the replies will be written over the slot that the states came in.
            state.update({name: value.clone() for name, value in states.get(order.client, {}).items()})
        share = done(orders, bill, sites, bench)
        after = {order.client: dict(sites[order.client].state) for order in orders if sites[order.client].state}
        shelf = Shelf(slot, aligned=False)
        data = pack((share, after), shelf)
        connection.send_bytes(shelf.used.to_bytes(NUMBER_BYTES, "little") + data)
