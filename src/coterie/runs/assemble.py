"""Put a run together from its configuration: federation, model, engine, method."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from coterie import models
from coterie.data.scenario import Defaults
from coterie.data.scenarios import find_scenario
from coterie.engines import LocalEngine
from coterie.engines.base import Engine
from coterie.engines.ray import RayEngine
from coterie.engines.secure import SecureEngine
from coterie.errors import ConfigError, DataError, RunError
from coterie.federation import Federation
from coterie.federation.changing import ChangingFederation
from coterie.federation.fingerprint import fingerprint
from coterie.federation.images import holds_images
from coterie.federation.table_files import read_table
from coterie.federation.table_sites import find_tables, is_table_path
from coterie.federation.validation import hold_out
from coterie.methods import Method, Server, make_method
from coterie.methods.base import published_table
from coterie.methods.needs import Needs, check_protection, needs_of
from coterie.methods.options import literal
from coterie.methods.server_optimizer import ServerOptimizer
from coterie.metrics import ALWAYS, MetricFunction, check_target, listed, resolve
from coterie.models.custom import find_callable
from coterie.options import DEFAULT_SCENARIO, FIELDS
from coterie.parameters import Layout
from coterie.privacy import Mask
from coterie.privacy.user_level import UserPrivacy
from coterie.randomness import derive
from coterie.runs.checks import check_federation, check_needs, check_noise, check_shown, check_training, try_out
from coterie.runs.config import RunConfig, absolute_paths
from coterie.runs.metrics import constant_score
from coterie.runs.prepared import Placing, Run
from coterie.runs.target_scaling import TargetScaling
from coterie.trainers.base import Training
from coterie.trainers.devices import CPU
from coterie.trainers.losses import LOSSES, Loss, find_loss, one_logit
from coterie.trainers.repeatable import check_repeatable, is_own
from coterie.trainers.schedules import make_schedule
from coterie.trainers.threads import one_torch_thread

Model = str | nn.Module | Callable[..., nn.Module]


def make_federation(config: RunConfig) -> tuple[Federation, Defaults]:
    """The federation the configuration names, and the defaults that go with it."""
    if config.data:
        for key in ("clients", "samples", "groups"):
            if getattr(config, key) is not None:
                raise ConfigError(f"{key}={getattr(config, key)} goes with a scenario, not with data={config.data!r}")
        return _own_data(config, config.data), Defaults()
    scenario = find_scenario(config.scenario or DEFAULT_SCENARIO)
    federation = scenario.build(
        clients=config.clients,
        samples=config.samples,
        groups=config.groups,
        seed=derive(config.seed, "scenario"),
        data_dir=Path(config.data_dir) if config.data_dir else None,
    )
    return federation, scenario.defaults


def _own_data(config: RunConfig, data: str) -> Federation:
    """The federation in the user's own files: tables, images or arrays."""
    if config.label is not None or is_table_path(data):
        if config.label is None:
            first = read_table(find_tables(data)[0])
            raise ConfigError(
                f"data={data!r} are tables: give --label, the column to predict (label=… in Python), of "
                + ", ".join(first.columns)
            )
        try:
            return Federation.from_tables(
                data,
                config.label,
                client_column=config.client_column,
                drop=config.drop or (),
                categorical=config.categorical or (),
                task=config.task,
                decimal=config.decimal,
                blocks=config.block_column,
                seed=config.seed,
            )
        except DataError as problem:
            check = shlex.join(["coterie", "check", data, "--label", config.label])
            raise DataError(f"{problem}; all problems at once: {check}") from problem
    if holds_images(Path(data)):
        colour = None if config.image_colour is None else config.image_colour == "colour"
        return Federation.from_images(data, size=config.image_size, colour=colour, seed=config.seed)
    return Federation.from_folder(data, task=config.task, seed=config.seed, memory_bytes=config.memory_bytes)


def make_architecture(model: Model, federation: Federation, loss: Loss | None = None) -> Callable[[int], nn.Module]:
    """A function from a seed to a freshly initialised module, checked once on a sample of the data."""
    # A regression has 0 classes; one logit may stand for two.
    outputs = 1 if one_logit(loss, federation.classes) else federation.classes
    dtype = federation.clients[0].train.x.dtype
    architecture = models.initialiser(model, federation.input_shape, outputs, dtype)
    try_out(architecture(0), federation, loss)
    return architecture


@one_torch_thread()
def assemble(
    config: RunConfig,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    method: Method | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
    defaults: Defaults | None = None,
    engine_for: Callable[[Callable[[int], nn.Module]], Engine] | None = None,
) -> tuple[Run, dict[str, Any]]:
    """The run, and the config as used (every default filled in), which identifies it.

    Objects given in Python take the place of what the configuration would name. The method's options are checked
    before any data is touched. Where the clients are elsewhere, `federation` only shows what their data looks like,
    `defaults` are what goes with it, and `engine_for` makes the engine that reaches them from the architecture.
    """
    check_federation(federation)
    method = method or make_method(config.method)
    loss = loss_of(config, loss)
    optimizer = _server_optimizer(config, method)
    check_shown(config, method)
    scenario = None if federation or config.data else (config.scenario or DEFAULT_SCENARIO)
    federation, defaults = _clients_of(config, federation, defaults, here=engine_for is None)
    metrics = metrics or {}
    scaling = TargetScaling.of(federation.table)
    trained = scaling.federation(federation)
    asked = scaling.metrics(run_metrics(config, metrics, trained.regression))
    network: Model = model or config.model or defaults.model
    architecture = make_architecture(network, trained, loss)
    rounds = config.rounds or defaults.rounds
    training = config.training(defaults.training)
    check_training(training, loss, federation)
    make = engine_for or partial(make_engine, config, trained, loss=loss, metrics=asked)
    engine = make(architecture)
    now, enter_round = _through_time(federation, engine, config)
    server = Server(
        engine,
        make_schedule(config.lr_schedule, training, rounds),
        config.seed,
        rounds,
        config.participation,
        config.aggregation(len(engine.clients)),
        _user_privacy(config, method, engine),
        optimizer,
    )
    check_needs(method, engine)
    names = {"method": describe_method(method), "model": _name_of(network)}
    identity = {**names, "scenario": scenario, "federation": fingerprint(federation)}
    used = absolute_paths(_config_as_used(config, training, rounds, loss, metrics) | identity)
    labels = {**names, "scenario": scenario or federation.name, "seed": config.seed}
    run = Run(
        method,
        server,
        architecture,
        federation.groups,
        labels,
        _model_shape(used["model"], federation, loss),
        config.evaluate_every,
        personalise=config.personalise,
        metrics=tuple(asked),
        validate=config.validates,
        limits=config.limits(),
        table=federation.table,
        placing=make_placing(method, config, architecture, training, rounds, loss, scaling),
        loss_unit=scaling.loss_unit(loss),
        constant=None if engine_for else lambda client: constant_score(now()[client], loss),
        enter_round=enter_round,
        groups_now=lambda: now().groups,
    )
    return run, used


def _server_optimizer(config: RunConfig, method: Method) -> ServerOptimizer:
    """The server's optimiser; ConfigError where the method takes no such steps."""
    optimizer = ServerOptimizer.parse(config.server_optimizer)
    if optimizer.rule != "none" and not getattr(method, "server_steps", False):
        raise ConfigError(
            f"server_optimizer={config.server_optimizer!r}: {describe_method(method)} averages no models by "
            "server.step: leave it out"
        )
    return optimizer


def _clients_of(
    config: RunConfig, given: Federation | None, defaults: Defaults | None, *, here: bool
) -> tuple[Federation, Defaults]:
    """The federation that was given, or the one the configuration names, and the defaults that go with it.

    Clients that are `here` hold back the share of samples that the configuration asks for.
    """
    federation, defaults = (given, defaults or Defaults()) if given else make_federation(config)
    if here and isinstance(config.validation, float):
        federation = hold_out(federation, config.validation, config.seed)
    return federation, defaults


def _user_privacy(config: RunConfig, method: Method, engine: Engine) -> UserPrivacy | None:
    """The noise of differential privacy, if the configuration asks for it."""
    if not config.dp_noise:
        return None
    check_noise(config, method, engine)
    # In secure sums the size of the noise shows how many take part, so that is taken as known.
    rate = 1.0 if engine.capabilities.secure else config.participation
    chosen = (needs_of(method) or Needs()).choices != "none"
    return UserPrivacy(config.dp_noise, config.dp_clip, config.dp_delta, rate, choices=chosen)


def _name_of(network: Model) -> str:
    """What a model is called."""
    return network if isinstance(network, str) else str(getattr(network, "__name__", type(network).__name__))


def _config_as_used(
    config: RunConfig, training: Training, rounds: int, loss: Loss | None, own_metrics: Iterable[str]
) -> dict[str, Any]:
    """The configuration with what the scenario and the optimiser filled in, and its paper's table, if it has one."""
    filled = {key: getattr(training, key) for key in ("lr", "epochs", "steps", "momentum", "weight_decay")}
    published = published_table(config.method)
    return {
        **config.identity(),
        **filled,
        "rounds": rounds,
        "batch_size": training.batch_size or "full",
        "loss": config.loss or loss_name(loss),
        "published": published[0] if published else None,
        "own_metrics": ",".join(own_metrics) or None,
    }


def _model_shape(model: str, federation: Federation, loss: Loss | None) -> dict[str, Any]:
    """What is needed to make the model again without the data."""
    first = federation.clients[0]
    shape: dict[str, Any] = {
        "model": model,
        "input_shape": list(federation.input_shape),
        "classes": federation.classes,
        "dtype": str(first.train.x.dtype).removeprefix("torch."),
        "scaled": first.scaled,
    }
    if one_logit(loss, federation.classes):
        shape["outputs"] = 1
    if federation.label_names:
        shape["label_names"] = list(federation.label_names)
    return shape


def _through_time(
    federation: Federation, engine: Engine, config: RunConfig
) -> tuple[Callable[[], Federation], Callable[[int], list[str]] | None]:
    """The federation as it is now, and what enters a round of one that changes; ConfigError where it cannot change."""
    if not isinstance(federation, ChangingFederation):
        return (lambda: federation), None
    if not isinstance(engine, LocalEngine) or config.engine != "local":
        raise ConfigError(
            f"{federation.name} changes with time: it can be simulated on this machine only, engine=local"
        )
    return (lambda: engine.now), engine.enter_round


def make_placing(
    method: Method,
    config: RunConfig,
    architecture: Callable[[int], nn.Module],
    training: Training,
    rounds: int,
    loss: Loss | None,
    scaling: TargetScaling,
) -> Placing:
    """What newcomers are placed by after the run: the method, and a server whose clients are they, on this machine."""
    schedule = make_schedule(config.lr_schedule, training, rounds)

    def server_for(newcomers: Federation) -> Server:
        engine = LocalEngine(scaling.federation(newcomers), architecture, **_engine_options(config, loss))
        return Server(engine, schedule, config.seed, rounds)

    def reveal(vector: Tensor) -> Tensor:
        if config.privacy not in ("permutation", "signed-permutation"):
            return vector
        layout, signed = Layout.of(architecture(0)), config.privacy == "signed-permutation"
        return Mask.from_secret(clients_secret(config.seed), layout, signed=signed).reveal(vector)

    def check(part: Any) -> None:
        check_protection(part, config.secure_sums, masked=config.privacy != "none")
        needs = needs_of(part)
        if config.dp_noise and needs is not None and (why := needs.beyond_noise()) is not None:
            raise ConfigError(f"dp_noise={config.dp_noise}: {part.name}: {why}: {needs.instead}")

    return Placing(method, server_for, loss, reveal, check)


def run_metrics(
    config: RunConfig, own: Mapping[str, MetricFunction], regression: bool
) -> dict[str, MetricFunction | None]:
    """What a run is evaluated by beside loss and accuracy: names, with the functions of the user's own.

    ConfigError for a metric that does not go with the labels, or a monitor that is not evaluated.
    """
    found: dict[str, MetricFunction | None] = {}
    for name in listed(config.metrics):
        if ":" in name:
            found |= resolve({name.rpartition(":")[2]: find_callable(name, "metric")})
        elif name not in ALWAYS:
            check_target(name, regression)
            found[name] = None
    found |= own
    if config.monitor is not None and config.monitor not in (*ALWAYS, *found):
        raise ConfigError(
            f"monitor={config.monitor!r}: expected {', '.join([*ALWAYS, *found])}: name it in metrics too"
        )
    return found


def make_engine(
    config: RunConfig,
    federation: Federation,
    architecture: Callable[[int], nn.Module],
    loss: Loss | None = None,
    metrics: Mapping[str, MetricFunction | None] | None = None,
) -> LocalEngine:
    """The engine the configuration asks for."""
    own = {name: function for name, function in (metrics or {}).items() if function is not None}
    shared = _engine_options(config, loss) | {"metrics": own}
    if config.secure_sums:
        shared |= {"limit": config.secure_limit, "minimum": config.secure_minimum}
        return SecureEngine(federation, architecture, device=config.device, **shared)
    shared |= {"workers": config.workers, "memory_bytes": config.memory_bytes}
    if config.engine == "local":
        engine = LocalEngine(federation, architecture, device=config.device, **shared)
    else:
        engine = RayEngine(federation, architecture, address=config.ray_address, **shared)
    if engine.device == CPU and not engine.batched and is_own(architecture(0)):
        check_repeatable(engine.trainer, engine.initial_model(0), federation.clients[0].train)
    return engine


def _engine_options(config: RunConfig, loss: Loss | None) -> dict[str, Any]:
    """What every engine on this machine is made with."""
    secret = clients_secret(config.seed)
    return {"loss": loss, "precision": config.precision, "privacy": config.privacy, "secret": secret}


def clients_secret(seed: int) -> int:
    """What the clients share. In a simulation it comes from the seed, so that runs repeat; the server never asks."""
    return derive(seed, "clients' secret")


def stored_values(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in a run's folder, without what is only there to identify the run."""
    values = {key: value for key, value in stored.items() if key not in {"federation", "own_metrics", "published"}}
    loss = values.get("loss")
    # The name of a function from Python is there to be compared; it cannot be found again.
    return values if loss is None or loss in LOSSES or ":" in loss else values | {"loss": None}


def loss_of(config: RunConfig, given: Loss | None = None) -> Loss | None:
    """The loss that was given as a function, or the one that the configuration names; None: by the targets."""
    return given or (find_loss(config.loss) if config.loss else None)


def loss_name(loss: Loss | None) -> str | None:
    """What a loss that was given as a function is called; never like one of ours."""
    if loss is None:
        return None
    name = str(getattr(loss, "__name__", type(loss).__name__))
    return f"{name} from Python" if name in LOSSES else name


def describe_method(method: Method) -> str:
    """The method as it would be written: its name and the options that are not the default ones."""
    cls = type(method)
    name = str(getattr(cls, "name", f"{cls.__module__}:{cls.__qualname__}"))
    options: Iterable[Field[Any]] = fields(method) if is_dataclass(method) else ()
    defaults = {option.name: option.default for option in options}
    values = {key: getattr(method, key) for key in defaults}
    given = [f"{key}={_written(value)}" for key, value in values.items() if value != defaults[key]]
    return f"{name}:{','.join(given)}" if given else name


def _written(value: Any) -> str:
    """An option's value so that `parse_options` reads it back: text that might read otherwise gets quotes."""
    text = str(value)
    bare = isinstance(value, str) and literal(text) == text and not set(text) & set(",()[]{}'\"")
    return text if bare else repr(value)


def check_same_run(used: dict[str, Any], given: dict[str, Any], path: Path) -> None:
    """Refuse to resume a run under another configuration or other data."""
    # A run from before an option was there was made with its default.
    defaults = {key: FIELDS[key].default for key in used.keys() & FIELDS.keys()}
    stored = defaults | absolute_paths(given)
    for key in sorted(set(used) | set(stored)):
        if used.get(key) != stored.get(key):
            raise RunError(
                f"{path}: the run was begun with {key}={stored.get(key)!r}, now it is {used.get(key)!r}: "
                "resume it with what it was begun with"
            )
