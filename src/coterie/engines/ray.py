"""The engine on a Ray cluster: one actor for each processor, on a cluster the user has or on one started here."""

from __future__ import annotations

import importlib
import logging
import os
import re
import socket
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from torch import nn

from coterie.engines.local import LocalEngine, available_cores
from coterie.engines.ray_pool import ActorPool
from coterie.engines.ray_worker import SHARD_BYTES, client_bytes
from coterie.errors import ConfigError, extra
from coterie.federation import Federation
from coterie.metrics import MetricFunction
from coterie.models.custom import FILE_MODULE
from coterie.tasks.base import Request
from coterie.trainers.losses import Loss

REACH_SECONDS = 5.0
"""How long to wait for a cluster to answer at its address."""
KEPT_BYTES = 2**26
"""The least that an actor keeps of the clients' data."""
WORK_FOR_ACTORS = 10**9
"""Estimated multiplications of an evaluation from which on it goes to the actors: about as long as a message takes."""

_refcount = 0
"""Engines that use the Ray which the first of them started or joined; the last one leaves it."""


class RayEngine(LocalEngine):
    """Runs the clients of a federation in the actors of a Ray cluster, with the very results of `LocalEngine`.

    `address` is a cluster's (`host:port`, `ray://…` or "auto"), else that in RAY_ADDRESS; without either, Ray is
    started on this machine and ended by `close`. A Ray that this process already uses is used as it is. `workers` is
    the number of actors ("auto": one for each processor of the cluster). Every actor keeps its share of the clients'
    data and as much again, within `memory_bytes`, and fetches other shards of `shard_bytes` when it needs them.
    Other options are those of `LocalEngine`.
    """

    def __init__(
        self,
        federation: Federation,
        architecture: Callable[[int], nn.Module],
        *,
        address: str | None = None,
        loss: Loss | None = None,
        workers: int | Literal["auto"] = "auto",
        shard_bytes: int = SHARD_BYTES,
        metrics: Mapping[str, MetricFunction] | None = None,
        **options: Any,
    ) -> None:
        # The processor, as the actors.
        super().__init__(federation, architecture, loss=loss, workers=workers, metrics=metrics, device="cpu", **options)
        self.shard_bytes = shard_bytes
        self._ray = find_ray()
        _send_by_value(self._ray, architecture(0), loss, *(metrics or {}).values())
        joined = join(self._ray, address, available_cores() if workers == "auto" else workers)
        self._leave = weakref.finalize(self, leave, self._ray) if joined else None

    def _worth_sending(self, requests: Sequence[Request], work: float) -> bool:
        # An evaluation of a few clients is answered here before it would have travelled.
        return work >= WORK_FOR_ACTORS or self._send_vectors(requests)

    def _start_pool(self) -> ActorPool:
        processors = int(self._ray.cluster_resources().get("CPU", 0))
        if processors == 0:
            raise ConfigError("the Ray cluster has no processors (CPU=0): add a machine to it")
        count = processors if self.workers == "auto" else min(self.workers, processors)
        machines = sum(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in self._ray.nodes())
        here = -(-count // max(machines, 1))  # actors on one machine
        data = sum(map(client_bytes, self.federation))
        kept = max(KEPT_BYTES, 2 * data // count)
        if self.memory_bytes is not None:
            kept = min(kept, self.memory_bytes // 4 // here)
        return ActorPool(
            self._ray,
            count,
            self.contexts,
            partial(self._trainer_maker(self._mask), self._grams // here),
            self.trainer,
            slots=self._slots(count),
            shard_bytes=self.shard_bytes,
            kept_bytes=kept,
        )

    def close(self) -> None:
        """End the actors, and leave the cluster or, if it was started here, end it."""
        super().close()
        if self._leave is not None:
            self._leave()


def _send_by_value(ray: Any, module: nn.Module, *functions: Any) -> None:
    """Let code from a user's file travel itself: no other machine could import it by name."""
    names = {type(part).__module__ for part in module.modules()} | {getattr(f, "__module__", "") for f in functions}
    for name in names:
        if name.startswith(FILE_MODULE):
            ray.cloudpickle.register_pickle_by_value(sys.modules[name])


def find_ray() -> Any:
    """The module ray, which is not a part of Coterie's own installation."""
    with extra("ray", "engine='ray'"):
        return importlib.import_module("ray")


def join(ray: Any, address: str | None, processors: int) -> bool:
    """Join the cluster at the address, or start one here; False where the process is in one without our doing."""
    global _refcount
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        options |= {"num_cpus": processors, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    else:
        _reach(ray, address)
    if ray.is_initialized() and not _refcount:
        return False
    if not ray.is_initialized():
        # The processes that are started here read this, and take it in no other way.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of Ray's own plans for graphics processors
                ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as problem:
            reason = " ".join(str(problem).split())
            raise ConfigError(f"ray_address={address!r}: Ray cannot be joined there ({reason})") from problem
    _refcount += 1
    return True


def leave(ray: Any) -> None:
    """Take one engine's leave; the last one leaves the cluster, which ends if it was started here."""
    global _refcount
    _refcount -= 1
    if _refcount == 0:
        ray.shutdown()


def _reach(ray: Any, address: str) -> None:
    """Look whether anybody listens at the address, since Ray itself would try for minutes and then say much."""
    if address == "auto" or ("://" in address and not address.startswith("ray://")):
        return
    match = re.fullmatch(r"(ray://)?\[?([^/\[\]]+?)\]?:(\d{1,5})", address)
    if match is None:
        raise ConfigError(f"ray_address={address!r}: expected host:port, ray://host:port or 'auto'")
    scheme, host, port = match.groups()
    if not scheme and host in ("localhost", "127.0.0.1", "::1"):
        host = ray.util.get_node_ip_address()  # which Ray puts in its place
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as problem:
        raise ConfigError(
            f"ray_address={address!r}: no answer at {host}:{port} ({problem}): start Ray there with 'ray start', "
            "or leave the address out to use this machine alone"
        ) from problem
