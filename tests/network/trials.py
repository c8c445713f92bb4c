"""What the network tests share: a small federation, its apps, and ways to wait for what a run does."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired

import pytest
from safetensors.torch import load_file

import coterie
from coterie.flower.deploy import Deployment, write_deployment
from coterie.flower.local import Network
from coterie.runs import Result
from coterie.runs.config import make_config
from coterie.runs.folder import RunFolder
from coterie.runs.records import RoundRecord, Summary

WAIT = float(os.environ.get("COTERIE_TEST_WAIT", "480"))
"""The longest that anything may take, in seconds; a quiet machine needs a tenth of it."""
NODES = 4
COMMON = {"scenario": "digits-halves", "groups": 2, "samples": 100, "model": "mlp:hidden=16",
          "lr": 0.1, "epochs": 3, "batch_size": 20, "seed": 0}  # fmt: skip
TRUTH = [["client-0", "client-2"], ["client-1", "client-3"]]
CFL = "cfl:rule=paper(eps1=100.0,eps2=0.001,gamma_max=0.0,wait=2),fallback=false"
"""Splits once, after two rounds, whatever the norms are: how fast it decides is tested elsewhere."""


@dataclass
class Trial:
    """A network, and where its apps go."""

    network: Network
    root: Path
    nodes: int = NODES

    def app(self, name: str, method: str, rounds: int) -> Deployment:
        """An app for a run of the method; evaluated at the end only, because every exchange takes seconds."""
        values = {"clients": self.nodes, "method": method, "rounds": rounds, "evaluate_every": rounds}
        config = make_config(COMMON | values)
        return write_deployment(self.root / name, config)

    def add_nodes(self) -> None:
        """Start the nodes, each with the data of one client of the scenario."""
        for number, node in enumerate(self.app("data", "fedavg", 1).nodes):
            settings = node | {"partition-id": number, "num-partitions": self.nodes}
            self.network.add_node(f"node-{number}", settings)

    def local(self, method: str, rounds: int, out: Path) -> Result:
        """The same run on the local engine."""
        return coterie.run(method, **COMMON, clients=self.nodes, rounds=rounds, workers=1, out=out)

    def finish(self, run: Popen[bytes], deployment: Deployment, name: str = "run") -> Summary:
        """Wait for the end of a run; its summary."""
        self.wait_end(run, name)
        summary = RunFolder(deployment.run).summary()
        assert summary is not None, self.network.log(name).read_text()[-3000:]
        return summary

    def wait_end(self, run: Popen[bytes], name: str) -> None:
        try:
            run.wait(WAIT)
        except TimeoutExpired:
            pytest.fail(f"{name} did not end: {self.network.log(name).read_text()[-3000:]}")

    def wait_for(self, what, name: str = "run", seconds: float = WAIT) -> None:
        """Wait until something is so."""
        limit = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < limit, self.network.log(name).read_text()[-3000:]
            time.sleep(0.02)


def history(deployment: Deployment) -> list[RoundRecord]:
    return RunFolder(deployment.run).history()


def models(folder: Path) -> list[dict]:
    return [load_file(path) for path in sorted((folder / "models").glob("cluster-*.safetensors"))]


def assert_same_models(here: Path, there: Path) -> None:
    """The same parameters up to the order in which float32 numbers were added."""
    ours, others = models(here), models(there)
    assert len(ours) == len(others) > 0
    for mine, other in zip(ours, others, strict=True):
        assert mine.keys() == other.keys()
        for name, tensor in mine.items():
            assert tensor.shape == other[name].shape
            assert tensor.allclose(other[name], rtol=1e-4, atol=1e-6), name
