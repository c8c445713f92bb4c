"""What lets a Flower app of the user's own answer CFL's checks: one line beside its train and evaluate functions.

    app = ClientApp()
    answer_checks(app, Net, training_data, fit)

A check asks a node for two updates, each made of one half of its data, and for losses on the halves that they were not
made of. Both updates are made by the app's own training, so that they are of the kind that its rounds are made of.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from coterie.errors import ConfigError, DataError, users_code
from coterie.federation import Client, Split
from coterie.flower.folding import answering
from coterie.flower.wire import layout_mark, pack_reply, unpack_task
from coterie.tasks import HalfUpdates, HeldOut
from coterie.tasks.base import ClientContext
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import Loss, default_loss

ACTION = "coterie_check"
"""Checks are messages of type `query.coterie_check`."""
ABLE = "able"
"""The number in the answer to a message without a task: whether this node answers checks."""

Data = Callable[[Context], Any]
Fit = Callable[[nn.Module, TensorDataset, ConfigRecord, Context], Any]


def answer_checks(
    app: ClientApp, model: Callable[[], nn.Module], data: Data, fit: Fit, loss: Loss | None = None
) -> None:
    """Let the app answer the checks of the strategy `coterie.flower.CFL`, besides what it does already.

    Args:
        app: the app, whose train and evaluate functions stay as they are.
        model: makes the network whose `state_dict()` the app exchanges, for example its class.
        data: the node's training data by Flower's Context: a pair of tensors (x, y), a Dataset of such pairs, or a
            DataLoader of one.
        fit: the app's own training, `fit(net, dataset, config, context)`: it trains `net` in place on the TensorDataset
            as the app's train function does on all the data; `config` is the ConfigRecord of the round.
        loss: `(outputs, targets) -> mean loss`; by default cross-entropy for labels, squared for reals.
    """
    handler = CheckHandler(model, data, fit, loss)
    app.query(ACTION)(answering(handler.answer))


class CheckHandler:
    """What a node does with the messages of a check."""

    def __init__(self, model: Callable[[], nn.Module], data: Data, fit: Fit, loss: Loss | None) -> None:
        self.model, self.data, self.fit, self.loss = model, data, fit, loss
        self._data: dict[Any, Split] = {}

    def answer(self, records: RecordDict, context: Context) -> RecordDict:
        """Do the task of a check, and leave the app's random numbers as they were."""
        with torch.random.fork_rng():
            return self._answer(records, context)

    def _answer(self, records: RecordDict, context: Context) -> RecordDict:
        header, config = records["task"], records.get("config", ConfigRecord())
        assert isinstance(header, ConfigRecord)
        assert isinstance(config, ConfigRecord)
        split = self._split(context)
        loss = self.loss or default_loss(split.y.is_floating_point())
        trainer = AppTrainer(self._network(), loss, self.fit, config, context)
        if layout_mark(trainer.layout) != header.get("layout"):
            raise ConfigError(
                "the model of answer_checks is not the one whose arrays the strategy got: give both the same network, "
                "all of its state_dict(), and name buffers that are no BatchNorm statistics with CFL(buffers=[...])"
            )
        if "kind" not in header:
            return RecordDict({"values": MetricRecord({ABLE: 1.0})})
        task = unpack_task(records, trainer.layout, lambda seed: torch.zeros(trainer.layout.size))
        if type(task) not in (HalfUpdates, HeldOut):
            raise ConfigError(
                f"{type(task).__name__} is no part of a check: use the same version of coterie everywhere"
            )
        client = Client(str(context.node_id), split, _none_of(split), _none_of(split))
        [reply], _ = task.perform([task], [ClientContext(client, {})], trainer)
        return pack_reply(reply, task.schema(trainer.layout))

    def _network(self) -> nn.Module:
        with users_code("the model of answer_checks"):
            module = self.model()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"the model of answer_checks makes a {type(module).__name__}: expected an nn.Module")
        return module

    def _split(self, context: Context) -> Split:
        # Nodes and runs of one process may differ in their configuration alone.
        key = (context.node_id, *sorted(context.node_config.items()), *sorted(context.run_config.items()))
        if key not in self._data:
            with users_code("the data function of answer_checks", DataError):
                given = self.data(context)
            self._data[key] = split_of(given)
        return self._data[key]


class AppTrainer(LoopTrainer):
    """Evaluates as any trainer does, and trains by the app's own function on a copy of the app's own network."""

    def __init__(self, module: nn.Module, loss: Loss, fit: Fit, config: ConfigRecord, context: Context) -> None:
        super().__init__(module, loss)
        self.adds_in_place = False  # its updates come from the app
        self.network, self.fit, self.config, self.context = module, fit, config, context

    def _updates(self, jobs: Sequence[TrainingJob], training: Training) -> tuple[Tensor, Tensor]:
        """The updates `(jobs, d)`, and the loss of each job's data at the end; the app knows how to train, not we."""
        ends = torch.stack([self._trained(job) for job in jobs])
        losses = [self.evaluate([job.data], end[None])[0] for job, end in zip(jobs, ends, strict=True)]
        return ends - torch.stack([job.start for job in jobs]), torch.cat(losses).reshape(-1)

    def _trained(self, job: TrainingJob) -> Tensor:
        network = copy.deepcopy(self.network)
        self.layout.write(job.start, network)
        network.train()
        torch.manual_seed(job.seed)
        with users_code("the training function of answer_checks"):
            self.fit(network, TensorDataset(job.data.x, job.data.y), self.config, self.context)
        return self.layout.read(network)


def split_of(given: Any) -> Split:
    """The tensors of a pair (x, y), of a Dataset of such pairs, or of a DataLoader's."""
    if isinstance(given, DataLoader):
        given = given.dataset
    if isinstance(given, TensorDataset):
        given = given.tensors
    elif isinstance(given, Dataset):
        given = _stacked(given)
    if not (isinstance(given, Sequence) and len(given) == 2 and all(isinstance(part, Tensor) for part in given)):
        raise DataError(
            f"the data function of answer_checks gives a {type(given).__name__}: expected a pair of tensors (x, y), or "
            "a Dataset of such pairs"
        )
    x, y = given
    if not len(x) or len(x) != len(y):
        raise DataError(f"the data of answer_checks has {len(x)} inputs and {len(y)} targets: give as many of each")
    return Split(x, y)


def _stacked(dataset: Dataset[Any]) -> list[Tensor]:
    try:
        items = [dataset[i] for i in range(len(dataset))]  # type: ignore[arg-type]
        return [torch.stack([torch.as_tensor(value) for value in column]) for column in zip(*items, strict=True)]
    except (TypeError, ValueError, RuntimeError) as problem:
        raise DataError(f"the data of answer_checks: expected (x, y) items of one shape ({problem})") from problem


def _none_of(split: Split) -> Split:
    return Split(split.x[:0], split.y[:0])
