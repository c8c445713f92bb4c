"""Use a finished CFL run's tree: the models on a client's path, their ensemble, and the place of a newcomer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie import models
from coterie.engines import LocalEngine
from coterie.errors import RunError
from coterie.federation import Federation
from coterie.methods.cfl_state import State, newcomer_update
from coterie.methods.server import Server
from coterie.methods.tree import Node, Tree
from coterie.parameters import Layout
from coterie.privacy import Mask
from coterie.runs.assemble import Model, clients_secret, stored_values
from coterie.runs.config import make_config
from coterie.runs.folder import RunFolder
from coterie.schedules import make_schedule
from coterie.workbench import Training


@dataclass(frozen=True)
class TreeOfRun:
    """A run's tree with what is needed to make modules of its vectors."""

    tree: Tree
    architecture: Callable[[int], nn.Module]
    config: dict[str, Any]

    def module(self, node: Node) -> nn.Module:
        """A module with a node's parameters, in evaluation mode."""
        module = self.architecture(0)
        layout = Layout.of(module)
        mask = self._mask(layout)
        layout.write(mask.reveal(node.model) if mask else node.model, module)
        return module.eval()

    def _mask(self, layout: Layout) -> Mask | None:
        """What the run's vectors were turned by, if they were."""
        privacy = self.config["privacy"]
        return None if privacy == "none" else Mask.from_secret(self._secret, layout, signed=privacy != "permutation")

    @property
    def _secret(self) -> int:
        return clients_secret(self.config["seed"])

    def path_of(self, client: str) -> list[Node]:
        """The nodes from the root to the client's cluster."""
        return self.tree.path(self.tree.leaf_of(client))

    def ensemble(self, client: str) -> PathEnsemble:
        """One module that averages the predictions of all models on a client's path."""
        return PathEnsemble([self.module(node) for node in self.path_of(client)])

    def place(self, newcomers: Federation) -> dict[str, Node]:
        """The leaf of each newcomer, by Algorithm 4; each trains on its own data from the nodes on its way."""
        config = make_config(stored_values(self.config))
        training = config.training(Training())  # a stored config names every number
        rounds = config.rounds or 1
        engine = LocalEngine(
            newcomers,
            self.architecture,
            precision=config.precision,
            privacy=config.privacy,
            secret=self._secret,
        )
        server = Server(engine, make_schedule(config.lr_schedule, training, rounds), config.seed, rounds)
        return {
            client: self.tree.descend(lambda model, c=client: newcomer_update(c, model, rounds, server))  # type: ignore[misc]
            for client in newcomers.ids
        }


class PathEnsemble(nn.Module):
    """Averages the class probabilities of several models; the result is a logarithm, so it can stand for logits."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Log of the mean probability, `(n, classes)`."""
        logs = torch.stack([torch.log_softmax(member(x), dim=-1) for member in self.members])
        return torch.logsumexp(logs, dim=0) - torch.log(torch.tensor(float(len(self.members))))


def load_tree(path: str | Path, *, model: Model | None = None) -> TreeOfRun:
    """The tree of a CFL run folder, finished or not. `model` is needed where the run was given one from Python."""
    folder = RunFolder(Path(path))
    if not folder.has("config.json"):
        raise RunError(f"{path}: not a run folder (no config.json in it)")
    checkpoint = folder.checkpoint()
    if checkpoint is None or not isinstance(checkpoint.state, State):
        raise RunError(f"{path}: holds no parameter tree: only a run of method cfl makes one")
    return TreeOfRun(checkpoint.state.tree, stored_architecture(folder, model), folder.config())


def stored_architecture(folder: RunFolder, model: Model | None = None) -> Callable[[int], nn.Module]:
    """The function that makes a run's modules, from what its folder says of the model; no data is needed."""
    shape = folder.read_json("model.json")
    if isinstance(model, nn.Module):
        module = model
        return lambda seed: models.reinitialise(module, seed)
    spec = model or shape["model"]
    dtype = getattr(torch, shape["dtype"])
    return lambda seed: models.build(spec, tuple(shape["input_shape"]), shape["classes"], seed, dtype)
