"""Flower's simulation as a contender: its own FedAvg on virtual nodes in Ray actors, in a process of its own.

The clients run the plain loop's training, which is what a Flower client does; Flower sends the messages.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from coterie import Federation
from coterie.methods import Server
from coterie.randomness import derive
from coterie.trainers import default_loss
from coterie_bench.plain import PlainClient
from coterie_bench.workloads import Workload

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
TIMEOUT = 600
"""Seconds to wait for a round; the first one starts Ray."""


class FlowerRounds:
    """Rounds of Flower's FedAvg, one per call."""

    name = "Flower's simulation"

    def __init__(self, workload: Workload, federation: Federation, server: Server) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        handle, name = tempfile.mkstemp(prefix="coterie-bench-flower-", suffix=".log")
        os.close(handle)
        self.log = Path(name)
        self.process = context.Process(
            target=simulate, args=(theirs, workload, server.seed, name), name="coterie-bench-flower"
        )
        self.process.start()
        theirs.close()

    def round(self, t: int) -> None:
        try:
            self.connection.send(t)
            if not self.connection.poll(TIMEOUT):
                raise RuntimeError(f"no round within {TIMEOUT} s")
            replies = self.connection.recv()
        except (EOFError, BrokenPipeError):
            lines = self.log.read_text(errors="replace").split("\n")
            raise RuntimeError(f"it ended: {next((line for line in reversed(lines) if line.strip()), '')}") from None
        if not replies:
            raise RuntimeError(f"no client answered: see {self.log}")

    def close(self) -> None:
        self.connection.close()
        self.process.join(60)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.log.unlink(missing_ok=True)


def simulate(connection: Connection, workload: Workload, seed: int, log: str) -> None:
    """The child process: one simulation whose server does a round whenever the parent sends a number."""
    os.environ.update(SWITCHES)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import ray
    from flwr.app import ArrayRecord, ConfigRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=workload.participation,
            fraction_evaluate=0.0,
            min_train_nodes=workload.participants,
            min_available_nodes=workload.clients,
        )
        arrays = ArrayRecord(workload.architecture()(derive(seed, "model", 0)).state_dict())
        while True:
            try:
                t = connection.recv()
            except EOFError:
                return
            replies = list(grid.send_and_receive(strategy.configure_train(t, arrays, ConfigRecord(), grid)))
            averaged, _ = strategy.aggregate_train(t, replies)
            arrays = averaged or arrays
            connection.send(sum(reply.has_content() for reply in replies))

    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    try:
        run_simulation(app, client_app(workload, seed), num_supernodes=workload.clients, backend_config=resources)
    finally:
        ray.shutdown()
        # When Flower gives up, its server's thread still waits for nodes and would keep this process alive.
        os._exit(0)


def client_app(workload: Workload, seed: int) -> ClientApp:
    """A Flower client that trains as the plain loop does."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = _client(workload, seed, int(context.node_config["partition-id"]))
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        weights = client.train(dict(arrays.to_torch_state_dict()), derive(seed, "batches", message.metadata.message_id))
        content = RecordDict(
            {"arrays": ArrayRecord(weights), "metrics": MetricRecord({"num-examples": float(len(client))})}
        )
        return Message(content=content, reply_to=message)

    return app


@cache
def _client(workload: Workload, seed: int, number: int) -> PlainClient:
    """The client of that number, cached in each actor so that its data is generated once."""
    return PlainClient(
        workload.data(seed, number), _module(workload), default_loss(workload.regression), workload.training
    )


@cache
def _module(workload: Workload) -> nn.Module:
    return workload.architecture()(0)
