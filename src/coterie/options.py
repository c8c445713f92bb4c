"""The options of a run in groups: the one list that Python, the command, TOML files and the documentation go by."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field as DataclassField
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_type_hints

from annotated_types import Ge, Gt, Interval, Predicate

from coterie.option_types import Placeholder, field_docstrings, union_members, value_in_words

if TYPE_CHECKING:
    from coterie.metrics import Metrics as Metrics
    from coterie.trainers.base import Augment as Augment
    from coterie.trainers.losses import Loss as Loss
else:  # the same without torch, which the command's help does not need
    Augment = Loss = Callable[..., Any]
    Metrics = str | Sequence[str | Callable[..., Any]] | Mapping[str, Callable[..., Any]]

DEFAULT_SCENARIO = "digits-permuted"
"""The federation of a run that names none."""
MOST_CLIENTS, MOST_SAMPLES, MOST_WORKERS, MOST_PIXELS = 10**7, 10**9, 1024, 10**4
MOST_ROUNDS, MOST_STEPS = 10**9, 10**6
"""Larger numbers are typing errors, which would keep the machine busy for hours before they failed."""

Address = Annotated[str, Placeholder("ADDRESS")]
BlocksText = Annotated[str, Placeholder("blocks:COLUMN"), Predicate(re.compile("^blocks:.").match)]
ClipText = Annotated[str, Placeholder("LENGTH")]
ColumnName = Annotated[str, Placeholder("COLUMN")]
Device = Annotated[str, Placeholder("DEVICE")]
HostileText = Annotated[str, Placeholder("SHARE")]
MethodText = Annotated[str, Placeholder("METHOD")]
ModelText = Annotated[str, Placeholder("MODEL")]
Name = Annotated[str, Placeholder("NAME")]
OptimizerText = Annotated[str, Placeholder("OPTIMIZER")]
RuleText = Annotated[str, Placeholder("RULE")]
ScheduleText = Annotated[str, Placeholder("SCHEDULE")]
Size = Annotated[str, Placeholder("SIZE")]

Clients = Annotated[int, Interval(ge=1, le=MOST_CLIENTS)]
Pixels = Annotated[int, Interval(ge=1, le=MOST_PIXELS)]
Samples = Annotated[int, Interval(ge=1, le=MOST_SAMPLES)]
Steps = Annotated[int, Interval(ge=1, le=MOST_STEPS)]
Whole = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
BelowOne = Annotated[float, Interval(gt=0, lt=1)]


def unset(meaning: str = "the scenario's") -> Any:
    """A field without a value, and what is used where none is given."""
    return field(default=None, metadata={"unset": meaning})


@dataclass(frozen=True)
class BasicOptions:
    """What is trained, with which seed, and where its results go."""

    method: MethodText = "fedavg"
    """The method, with options as name:key=value,key=value."""
    as_published: bool = False
    """The method as its paper prints it, as METHOD:as=paper does; one without a paper as it is."""
    model: ModelText | None = unset()
    """The network: a known name with options, as in mlp:hidden=64, or module:callable."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of every random draw."""
    out: str | Path | None = unset("a new one under runs/")
    """A new folder for the results."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class DataOptions:
    """The clients and their data: a named scenario, or files of your own and how they are read."""

    data: str | Path | None = unset("none")
    """Your own data instead of a scenario: a folder with one .npz file (or .x.npy and .y.npy) per client, tables such
    as 'sites/*.csv', or a folder of images, CLIENT/CLASS/*.png."""
    scenario: Name | None = unset(DEFAULT_SCENARIO)
    """A named federation (see 'coterie scenarios')."""
    clients: Clients | None = unset()
    """Number of clients of the scenario."""
    samples: Samples | None = unset()
    """Training samples per client of the scenario."""
    groups: Clients | None = unset()
    """Number of hidden groups of the scenario."""
    label: ColumnName | None = unset("none")
    """The column of the tables that is to be predicted."""
    client_column: ColumnName | None = unset("none: every file is a client")
    """The column of one table that names the client of each row."""
    drop: str | Sequence[str] | None = unset("none")
    """Columns of the tables to leave out, as NAME,NAME."""
    categorical: str | Sequence[str] | None = unset("those that hold texts")
    """Columns of numbers that are categories, as NAME,NAME."""
    decimal: Literal[".", ","] | None = unset("found in each file")
    """Decimal mark of the numbers in all tables."""
    task: Literal["classification", "regression"] | None = unset("as the labels show")
    """Whether labels are classes or quantities, where the data does not show it."""
    image_size: Pixels | None = unset("as they are")
    """Side in pixels that images are resized to."""
    image_colour: Literal["grey", "colour"] | None = unset("colour if any image has it")
    """Channels of images, one or three."""
    data_dir: str | Path | None = unset("COTERIE_DATA, else ~/.cache/coterie")
    """Folder with the data sets of scenarios."""


@dataclass(frozen=True)
class LimitOptions:
    """How long a run takes: its rounds, and what ends it earlier."""

    rounds: Annotated[int, Interval(ge=1, le=MOST_ROUNDS)] | None = unset()
    """Communication rounds."""
    patience: Whole | None = unset("all rounds")
    """Stop after this number of rounds without progress on validation data; the models of the best round stay."""
    monitor: Name | None = unset("loss")
    """The metric that patience watches."""
    max_seconds: Positive | None = unset("no limit")
    """Stop after the round in which this number of seconds has passed."""
    max_bytes: Whole | Size | None = unset("no limit")
    """Stop after the round in which this much has been sent, up and down, as 500MB or a number of bytes."""
    max_passes: Positive | None = unset("no limit")
    """Stop after the round in which clients have made this number of passes over their data in sum; a look without a
    gradient is a third of one."""


@dataclass(frozen=True)
class TrainingOptions:
    """What a client does in a round: its steps, its optimiser, its loss."""

    lr: Positive | None = unset("the scenario's; with Adam 0.001")
    """Step size of local training."""
    epochs: Steps | None = unset()
    """Local passes over the data in a round."""
    steps: Steps | None = unset()
    """Local SGD steps in a round, instead of epochs."""
    batch_size: Whole | Literal["full"] | None = unset()
    """Samples per step, or all of a client's."""
    optimizer: OptimizerText = "sgd"
    """The clients' optimiser: sgd, momentum, adam or adamw, with options as adam:beta2=0.99,eps=1e-6."""
    momentum: Annotated[float, Interval(ge=0, lt=1)] | None = unset("the scenario's; with optimizer=momentum 0.9")
    """Momentum of local training."""
    weight_decay: NotNegative | None = unset("the scenario's; with adamw 0.01")
    """Weight decay of local training."""
    keep_optimizer: bool = False
    """Let clients keep their optimiser's state between rounds; else every round begins without one."""
    lr_schedule: ScheduleText = "constant"
    """How lr changes over the rounds: constant, step:…, decay:… or exponential:…."""
    clip_gradient: Positive | None = unset("none")
    """Norm that the gradient of every local step is cut to."""
    loss: str | Loss | None = unset("cross-entropy for labels, mse for real targets")
    """The loss: cross-entropy, bce (a model with one output), mse, mae, huber, or module:function of outputs and
    targets; in Python also the function itself."""
    class_weights: str | Sequence[float] | None = unset("none")
    """Weight of each class in the local loss: numbers such as 1,5, or balanced: by each client's own labels."""
    augment: str | Augment | None = unset("none")
    """Random changes to the images of a step: flip, crop:4, both as flip,crop:4, or module:function of images and a
    generator; in Python also the function itself."""
    precision: Literal["float32", "float64", "bf16"] = "float32"
    """Arithmetic of the clients."""


@dataclass(frozen=True)
class AggregationOptions:
    """What the server does in a round: who takes part, and how updates become one."""

    participation: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Fraction of the clients that take part in a round."""
    aggregate: RuleText = "mean"
    """How a cluster's updates become one: mean, median, trimmed-mean(2), krum(2), multi-krum(2), geometric-median or
    centred-clip(1.5), with steps before it as in nnm+trimmed-mean(2) or bucketing(2)+median."""
    expect_hostile: Annotated[int, Ge(0)] | HostileText | None = unset("none")
    """Hostile clients to expect, as 2 or 10%: the rule against them is chosen in place of aggregate."""
    clip: ClipText = "none"
    """The longest update: 3x (times its cluster's median norm), a number, or none."""
    weight_cap: NotNegative = 0.0
    """The most samples that count for a client, times the median number; 0: no limit."""
    server_optimizer: OptimizerText = "none"
    """The server's optimiser, per cluster: none, avgm, adam or yogi, with options as adam:lr=0.1."""


@dataclass(frozen=True)
class PrivacyOptions:
    """What is kept from the server: secrets of the clients, sums under masks, differential privacy."""

    privacy: Literal["none", "permutation", "signed-permutation", "projection"] = "none"
    """What the clients' secret is used for: nothing, a permutation of every vector, or a projection of the updates
    that CFL compares."""
    secure_sums: bool = False
    """Form sums under masks that cancel, so that no single update is seen."""
    secure_limit: Positive = 1.0
    """The largest number of an update in a secure sum; larger ones are cut."""
    secure_minimum: Annotated[int, Ge(2)] = 3
    """Clients below which a cluster's secure sum is not opened."""
    dp_noise: NotNegative = 0.0
    """User-level differential privacy: standard deviation of the noise over dp_clip; 0: none. With secure sums the
    clients add it themselves."""
    dp_clip: Positive = 1.0
    """Norm that updates are cut to under dp_noise."""
    dp_delta: BelowOne = 1e-5
    """The δ at which the run's ε is reported."""


@dataclass(frozen=True)
class EngineOptions:
    """Where clients compute and with what: it changes no result, and may differ when a run is resumed."""

    engine: Literal["local", "ray"] = "local"
    """Where clients run: on this machine, or on Ray."""
    workers: Annotated[int, Interval(ge=1, le=MOST_WORKERS)] | Literal["auto"] = "auto"
    """Worker processes; auto: one per core where there is enough work."""
    device: Device = "auto"
    """Where clients compute: auto, cpu, cuda or cuda:N."""
    ray_address: Address | None = unset("RAY_ADDRESS, else one started here")
    """The Ray cluster to join."""
    memory: Size | None = unset("no limit")
    """Memory to keep within, as 8GB; the rest of a data folder stays on disk."""


@dataclass(frozen=True)
class EvaluationOptions:
    """What models are evaluated by, on which data and how often."""

    metrics: Metrics | None = unset("none")
    """Metrics beside loss and accuracy, as auc,f1 (see docs/guide/metrics.md); in Python also functions of outputs and
    labels."""
    validation: BelowOne | BlocksText | None = unset("what the data comes with")
    """Fraction of every client's training data that is held out as validation data; of tables also blocks:COLUMN, to
    divide them by whole values of a column such as a day or a patient."""
    evaluate_every: Whole | Literal["auto"] = "auto"
    """Rounds between two evaluations of all clients; auto: a round's participants, and all clients as rarely as a
    client takes part."""
    personalise: Annotated[int, Interval(ge=0, le=MOST_STEPS)] = 0
    """Local epochs for which each client fine-tunes its model at the end; 0: none."""


GROUPS: dict[str, type] = {
    "data": DataOptions,
    "limits": LimitOptions,
    "training": TrainingOptions,
    "aggregation": AggregationOptions,
    "evaluation": EvaluationOptions,
    "privacy": PrivacyOptions,
    "engine": EngineOptions,
}
"""The groups by their names: parameters of `coterie.run`, tables of a TOML file, sections of the command's help."""
GROUP_OF = {option.name: name for name, group in GROUPS.items() for option in fields(group)}
"""The group of every option; those of `BasicOptions` have none."""
FIELDS: dict[str, DataclassField[Any]] = {
    option.name: option for group in (BasicOptions, *GROUPS.values()) for option in fields(group)
}
"""Every option by its name, which no two groups share."""
PLACE_KEYS = frozenset({"out", "data_dir", "quiet", *(option.name for option in fields(EngineOptions))})
"""Keys that say where and how fast a run runs, not what it computes: they may differ when a run is resumed."""
LIMIT_KEYS = frozenset({"max_seconds", "max_bytes", "max_passes"})
"""Keys that are kept with a run, and may be given again when it is resumed."""

ColumnNames = Annotated[str, Placeholder("COLUMNS")]
Folder = Annotated[str, Placeholder("FOLDER")]


class WrittenOptions(
    EngineOptions,
    PrivacyOptions,
    EvaluationOptions,
    AggregationOptions,
    TrainingOptions,
    LimitOptions,
    DataOptions,
    BasicOptions,
):
    """The options of all groups as a configuration has them: those below are text, whatever Python gave.

    The last of the groups gives the first of the fields.
    """

    data: Annotated[str, Placeholder("DATA")] | None = None
    drop: ColumnNames | None = None
    categorical: ColumnNames | None = None
    data_dir: Folder | None = None
    loss: Annotated[str, Placeholder("LOSS")] | None = None
    class_weights: Annotated[str, Placeholder("WEIGHTS")] | None = None
    augment: Annotated[str, Placeholder("CHANGES")] | None = None
    metrics: Annotated[str, Placeholder("METRICS")] | None = None
    out: Folder | None = None


def option_annotation(key: str) -> Any:
    """The type of what may be given for a key; None, which stands for what is not given, is no part of it."""
    hint = _annotations()[key]
    return Union[tuple(part for part in union_members(hint) if part is not type(None))]  # noqa: UP007 (made here)


@cache
def _annotations() -> dict[str, Any]:
    """The types of all keys: evaluated once, because each evaluation reads all of them."""
    return get_type_hints(WrittenOptions, include_extras=True)


def option_default(key: str) -> str:
    """What is used where an option is not given, in words."""
    option = FIELDS[key]
    return str(option.metadata["unset"]) if option.default is None else value_in_words(option.default)


def option_text(key: str) -> str:
    """The sentences under an option's field, in one line."""
    group = GROUPS[GROUP_OF[key]] if key in GROUP_OF else BasicOptions
    return " ".join(field_docstrings(group)[key].split())
