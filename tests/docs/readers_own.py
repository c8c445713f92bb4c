"""What the reader of README has already: two clients' data, a network, and a Flower app with four nodes."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from coterie.flower import InProcessGrid

x_a, x_b = torch.randn(2, 40, 4, generator=torch.Generator().manual_seed(0))
y_a, y_b = (x_a[:, 0] > 0).long(), (x_b[:, 0] < 0).long()


class MyModule(nn.Sequential):
    """A network of one's own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2))


app = ClientApp()


def own_loss(message: Message, context: Context) -> tuple[MyModule, torch.Tensor]:
    """The model that was sent, and its loss on the node's data: two nodes hold x_a, two x_b."""
    model = MyModule()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = ((x_a, y_a), (x_b, y_b))[int(context.node_config["partition-id"]) % 2]
    return model, nn.functional.cross_entropy(model(x), y)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One step of gradient descent."""
    model, loss = own_loss(message, context)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(x_a)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The loss of the model."""
    _, loss = own_loss(message, context)
    metrics = MetricRecord({"eval_loss": loss.item(), "num-examples": len(x_a)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


grid = InProcessGrid(app, nodes=4)
arrays = ArrayRecord(MyModule().state_dict())
