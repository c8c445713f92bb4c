"""A Flower app as users write it: its own network, batches and optimiser; it knows nothing of clusters."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from coterie import Client, Federation
from coterie.flower import CFL, InProcessGrid, answer_checks

BATCH = 32


def fit(net: nn.Module, data: TensorDataset, config: ConfigRecord, context: Context) -> float:
    """Train the network in place by SGD; the mean loss seen."""
    weights, lr, losses = list(net.parameters()), float(str(config["lr"])), []
    for _ in range(int(context.run_config["epochs"])):
        for rows in torch.randperm(len(data)).split(BATCH):
            x, y = (tensor[rows] for tensor in data.tensors)
            loss = F.cross_entropy(net(x), y)
            for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.data.sub_(slope, alpha=lr)
            losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


def app_of(federation: Federation, network: Callable[[], nn.Module], checks: bool = True) -> ClientApp:
    """The app of a federation's clients, a node each by its partition; with `checks`, it answers them."""
    app, fresh = ClientApp(), network()

    def own(context: Context) -> Client:
        return federation.clients[int(context.node_config["partition-id"])]

    def training_data(context: Context) -> TensorDataset:
        return TensorDataset(own(context).train.x, own(context).train.y)

    def loaded(message: Message) -> nn.Module:
        net = copy.deepcopy(fresh)
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return net

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net, data = loaded(message), training_data(context)
        config = message.content.config_records["config"]
        metrics = MetricRecord({"train_loss": fit(net, data, config, context), "num-examples": len(data)})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        net, data = loaded(message), own(context).test
        with torch.no_grad():
            loss = float(F.cross_entropy(net(data.x), data.y))
        return Message(
            RecordDict({"metrics": MetricRecord({"eval_loss": loss, "num-examples": len(data)})}), reply_to=message
        )

    if checks:
        answer_checks(app, lambda: copy.deepcopy(fresh), training_data, fit)
    return app


def drop_in_clusters(
    federation: Federation,
    network: Callable[[], nn.Module],
    *,
    lr: float,
    epochs: int,
    rounds: int,
    participation: float,
    seed: int,
    checks: bool = True,
) -> tuple[list[list[str]], list[int]]:
    """The clusters that the strategy CFL makes of the app's nodes, as ids of clients, and the rounds of its splits."""
    grid = InProcessGrid(app_of(federation, network, checks), len(federation), run_config={"epochs": epochs})
    client_of = dict(zip(grid.get_node_ids(), federation.ids, strict=True))
    strategy = CFL(
        fraction_train=participation, fraction_evaluate=0.1, min_evaluate_nodes=1, min_train_nodes=1, seed=seed
    )
    torch.manual_seed(seed)  # the app's own batches
    strategy.start(grid, ArrayRecord(network().state_dict()), rounds, train_config=ConfigRecord({"lr": lr}))
    splits = [record.round for record in strategy.history for event in record.events if event.kind == "split"]
    return [[client_of[node] for node in members] for members in strategy.clusters], splits
