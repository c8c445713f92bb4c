"""The user's ClientApp, as Flower's quick-start has it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dropin.task import Net, load_data
from dropin.task import test as test_fn
from dropin.task import train as train_fn

app = ClientApp()


def prepared(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    node, config = context.node_config, context.run_config
    return model, load_data(node["partition-id"], node["num-partitions"], config["batch-size"], config["groups"])


@app.train()
def train(msg: Message, context: Context):
    model, (trainloader, _) = prepared(msg, context)
    loss = train_fn(model, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model, (_, testloader) = prepared(msg, context)
    loss, accuracy = test_fn(model, testloader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testloader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
