"""A ready ClientApp: it says who it is, does every task that Coterie's methods ask for, and keeps its data.

A SuperNode says which client it is in its node-config: `client` (a stable name of its own) or `partition-id` (a place
in the federation). Other keys: `data` (an .npz file, or a folder with one per client), `secret-file` (what the clients
share and the server must not know), `state-dir` (where private layers outlive a restart of the node or of the run),
`sums-key-file` (the private key that this client signs its part of secure sums with; the SuperNode's own serves) and
`sums-clients-file` (the public keys of all clients: with it this node sends updates into secure sums only, of
`least-in-sum` clients or more, and only together with clients of the list; see `demands` for what else it may demand).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from coterie.data.scenario import Defaults
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError, did_you_mean
from coterie.federation import PARTS, Client, Federation
from coterie.federation.folders import client_from_npz
from coterie.federation.table_sites import is_table_path
from coterie.federation.tables import Table, client_of
from coterie.federation.validation import hold_out_of
from coterie.flower.demands import check_task, sum_rules
from coterie.flower.folding import answering
from coterie.flower.tables import (
    TableOptions,
    keep_table,
    kept_text,
    pack_report,
    read_site,
    report_of,
    spelt,
)
from coterie.flower.wire import layout_mark, open_array, pack_array, pack_reply, unpack_task
from coterie.metrics import ALWAYS, MetricFunction, listed, split_own
from coterie.models.custom import find_callable
from coterie.privacy import Mask, MaskedTrainer
from coterie.privacy.keys import make_key
from coterie.privacy.masks import redrawn
from coterie.privacy.secure_tasks import KEPT
from coterie.runs.assemble import Model, make_architecture
from coterie.runs.target_scaling import TargetScaling
from coterie.snapshot import load_snapshot, save_snapshot
from coterie.tasks.base import ClientContext, Reply, ReplySchema
from coterie.trainers.base import Trainer
from coterie.trainers.batched import GRAM_BYTES
from coterie.trainers.choice import PRECISIONS, make_trainer
from coterie.trainers.losses import Loss, default_loss, find_loss

Source = Client | Federation | str | Path
Data = Source | Callable[[Context], Source] | None
STATE = "coterie"
"""The record of Context.state that holds what a client keeps between rounds."""


def client_app(
    model: Model | None = None,
    data: Data = None,
    loss: Loss | None = None,
    name: str | None = None,
    secret: int | str | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
    sums_clients: Mapping[str, str] | None = None,
) -> ClientApp:
    """A ClientApp that does every task of Coterie's methods on one client's data.

    `model` is a known name, a module or a callable, the same as the server's (None: what the run's configuration
    names). `data` is a `Client`, a `Federation` of which the node-config chooses one, the path of an .npz file or of a
    folder with one per client, a function of Flower's Context that gives any of these, or None: the path in the
    node-config. The client is known to the server by the node-config's `client`, else by `name`, else by its own id.
    With a `secret` a secret permutation is applied to every vector before the server sees it. `metrics` are functions
    of your own by name, for runs that ask for them; known ones need not be given. With `sums_clients`, the line of the
    .pub file of every client, updates go into secure sums only, whatever the server asks for, and only with those.
    """
    handler = ClientHandler(model, data, loss, name, secret, split_own(metrics)[1], sums_clients)
    app = ClientApp()
    for action in (handler.table, handler.describe, handler.coterie, handler.initial):
        app.query(action.__name__)(answering(action))
    return app


@dataclass(repr=False)  # its secrets are not for a log
class ClientHandler:
    """What a client does with the messages it gets. What is costly to make is kept for the next message."""

    model: Model | None
    data: Data
    loss: Loss | None
    name: str | None
    secret: int | str | None
    metrics: Mapping[str, MetricFunction]
    sums_clients: Mapping[str, str] | None
    _sources: dict[Any, Source] = field(default_factory=dict)
    _held_out: dict[Any, Client] = field(default_factory=dict)
    _trainers: dict[tuple[Any, ...], tuple[Trainer, Callable[[int], Tensor]]] = field(default_factory=dict)

    def table(self, records: RecordDict, context: Context) -> RecordDict:
        """Statistics of the columns of this node's table."""
        source = self._source(context)
        if not (isinstance(source, str | Path) and is_table_path(source)):
            raise ConfigError("this node has no table: give it data='…' in its node-config, a .csv or .parquet file")
        site = read_site(Path(source), self._name_for(Path(source), context), _table_options(context))
        return pack_report(report_of(site, _table_options(context)))

    def describe(self, records: RecordDict, context: Context) -> RecordDict:
        """Who this client is and what kind of data it has; never the data."""
        keep_table(records, context)
        client, classes = self._client(context)
        train = client.train
        description: dict[str, Any] = {part: len(client.part(part)) for part in PARTS} | {
            "client": client.id,
            "shape": list(train.x.shape[1:]),
            "dtype": str(train.x.dtype).removeprefix("torch."),
            "target_shape": list(train.y.shape[1:]),
            "target_dtype": str(train.y.dtype).removeprefix("torch."),
            "classes": Federation([client], classes).classes,
        }
        if client.group is not None and spelt(context.run_config).get("trial_groups") is True:
            description["group"] = client.group
        return RecordDict({"client": ConfigRecord(description)})

    def coterie(self, records: RecordDict, context: Context) -> RecordDict:
        """Do one task."""
        client, header = self._client(context)[0], _header(records)
        trainer, draw = self._trainer(client, header, context)
        task = unpack_task(records, trainer.layout, draw)
        if trainer.sum_rules is not None:
            check_task(task, trainer.sum_rules, trainer.layout)
        file = self._state_file(client.id, str(header.get("run", "")), context)
        state = _kept(context, file)
        before = dict(state)
        [reply], _ = task.perform([task], [ClientContext(client, state)], trainer)
        if state.keys() != before.keys() or any(state[key] is not before[key] for key in state):
            _keep(context, file, state)
        return pack_reply(reply, task.schema(trainer.layout))

    def initial(self, records: RecordDict, context: Context) -> RecordDict:
        """A permuted initial model, drawn from the server's seed and the clients' secret.

        From the seed alone the server could draw it too, and read the turn off the two.
        """
        client, header = self._client(context)[0], _header(records)
        trainer, draw = self._trainer(client, header, context)
        model = draw(int(str(header["seed"])))
        return pack_reply(Reply(client.id, len(client.train), model), ReplySchema(trainer.layout.size))

    def _client(self, context: Context) -> tuple[Client, int | None]:
        """This node's client under the id it goes by, and the number of classes where that is known."""
        # Two trials in one process may give one node id to different clients.
        key = (context.node_id, kept_text(context), *sorted(context.node_config.items()))
        if key not in self._sources:
            self._sources[key] = self._chosen(self._source(context), context)
        found = self._sources[key]
        named = context.node_config.get("client", self.name)
        if isinstance(found, Federation):
            client, classes = found.clients[0], found.classes or None
        else:
            assert isinstance(found, Client)
            client, classes = found, None
        client = client if named is None else replace(client, id=str(named))
        return self._with_validation(client, key, context), classes

    def _chosen(self, source: Source, context: Context) -> Source:
        """The client, or the federation of one client, that the node-config chooses."""
        if isinstance(source, Client):
            return source
        if isinstance(source, Federation):
            return _member(source, context)
        path = Path(source)
        if path.is_dir():
            path = path / f"{_folder_member(path, context)}.npz"
        if not is_table_path(path):
            return client_from_npz(path, seed=int(spelt(context.run_config).get("seed", 0)))
        text = kept_text(context)
        if text is None:
            raise ConfigError(f"{path.name} is a table: give the server label='…', the column to predict")
        table = Table.from_json(json.loads(text))
        site = read_site(path, self._name_for(path, context), _table_options(context))
        client = TargetScaling.of(table).client(client_of(site, table))
        return Federation([client], label_names=table.label_names, table=table, task=_table_options(context).task)

    def _name_for(self, path: Path, context: Context) -> str:
        """What a node with a table is called: its rows are divided by that name."""
        return str(context.node_config.get("client", self.name or path.stem))

    def _with_validation(self, client: Client, key: Any, context: Context) -> Client:
        """The client with the part of its training data held out that the run's configuration asks for."""
        options = spelt(context.run_config)
        fraction, seed = options.get("validation"), options.get("seed", 0)
        if fraction is None:
            return client
        held = (key, client.id, fraction, seed)
        if held not in self._held_out:
            self._held_out = {held: hold_out_of(client, float(fraction), int(seed))}
        return self._held_out[held]

    def _source(self, context: Context) -> Source:
        source = self.data(context) if callable(self.data) else self.data
        if source is None:
            given = context.node_config.get("data")
            if given is None:
                raise ConfigError('this node has no data: give data= to client_app or data="…" in the node-config')
            source = str(given)
        return source

    def _trainer(
        self, client: Client, header: ConfigRecord, context: Context
    ) -> tuple[Trainer, Callable[[int], Tensor]]:
        """The trainer for the server's model, and the function that draws an initial one from a seed."""
        options = spelt(context.run_config)
        precision = str(options.get("precision", "float32"))
        if precision not in PRECISIONS:
            raise ConfigError(f"precision={precision!r}: {did_you_mean(precision, PRECISIONS)}")
        secret, privacy = self._secret(context)
        rules, signing_key = sum_rules(context, self.sums_clients), _signing_key(context)
        model = self.model or named_model(context.run_config)
        x, y = client.train.x, client.train.y
        classes = int(str(header["classes"]))
        named = options.get("loss")
        loss = self.loss or (find_loss(str(named)) if named else None)
        table = kept_text(context)
        shapes = (x.shape[1:], x.dtype, y.shape[1:], y.dtype)
        key = (model, loss, classes, *shapes, precision, secret, privacy, rules, signing_key, table)
        if key not in self._trainers:
            federation = Federation([client], classes or None)
            architecture = make_architecture(model, federation, loss)
            own = loss or default_loss(federation.regression)
            trainer = make_trainer(architecture(0), own, client.train, precision, GRAM_BYTES)
            trainer.metrics = _metrics(self.metrics, options.get("metrics"), table)
            self._trainers[key] = _masked(trainer, architecture, secret, privacy)
            self._trainers[key][0].sum_rules = rules
            self._trainers[key][0].signing_key = signing_key
        trainer, draw = self._trainers[key]
        if layout_mark(trainer.layout) != header["layout"]:
            raise ConfigError(
                f"client {client.id!r} has another model than the server, or another privacy: its own has "
                f"{trainer.layout.size} numbers in {len(trainer.layout.layers)} layers: give both the same"
            )
        return trainer, draw

    def _secret(self, context: Context) -> tuple[bytes | None, str]:
        """The key that the clients share, and how vectors are permuted with it."""
        given = _secret_of(context, "secret", self.secret)
        privacy = str(spelt(context.run_config).get("privacy", "none" if given is None else "permutation"))
        if (given is None) != (privacy == "none"):
            held = "no secret" if given is None else "a secret"
            raise ConfigError(f"privacy={privacy!r}, and this client holds {held}: give all clients one, or none")
        return (None if given is None else make_key(str(given))), privacy

    def _state_file(self, client: str, run: str, context: Context) -> Path | None:
        folder = context.node_config.get("state-dir")
        if folder is None:
            return None
        name = hashlib.blake2b(f"{len(run)}/{run}/{client}".encode(), digest_size=12).hexdigest()
        return Path(str(folder)) / f"{name}.safetensors"


def named_model(config: Mapping[str, Any]) -> str:
    """The model that a run configuration names, or its scenario's."""
    options = spelt(config)
    return str(options.get("model") or defaults_of(options.get("scenario")).model)


def defaults_of(scenario: str | None) -> Defaults:
    """What goes with a scenario where the configuration says nothing else; without one, the general defaults."""
    return find_scenario(str(scenario)).defaults if scenario else Defaults()


def _metrics(own: Mapping[str, MetricFunction], asked: Any, table: str | None) -> dict[str, MetricFunction]:
    """The functions of a run's metrics, `module:function` among them; of scaled targets, in the targets' units."""
    names = listed(None if asked is None else str(asked))
    functions = dict(own) | {name.rpartition(":")[2]: find_callable(name, "metric") for name in names if ":" in name}
    known = [name for name in names if ":" not in name and name not in ALWAYS]
    scaling = TargetScaling.of(None if table is None else Table.from_json(json.loads(table)))
    in_units = scaling.metrics({name: functions.get(name) for name in (*known, *functions)})
    return {name: function for name, function in in_units.items() if function is not None}


def _header(records: RecordDict) -> ConfigRecord:
    header = records.get("task")
    if not isinstance(header, ConfigRecord) or not {"classes", "layout"} <= set(header):
        raise ConfigError("this message holds no task: use the same version of coterie everywhere")
    return header


def _table_options(context: Context) -> TableOptions:
    options = TableOptions.of(context.run_config)
    if options is None:
        raise ConfigError("the run names no label: give the server label='…', the column to predict")
    return options


def _folder_member(folder: Path, context: Context) -> str:
    """Whose file in a folder is this node's."""
    if "client" not in context.node_config:
        raise ConfigError(f'{folder} is a folder: say whose file in it is this node\'s, client="…" in the node-config')
    return str(context.node_config["client"])


def _member(source: Federation, context: Context) -> Federation:
    """The federation of one client that the node-config chooses."""
    node = context.node_config
    if "client" in node:
        named = str(node["client"])
        if named not in source.ids:
            raise ConfigError(f"client={named!r} in the node-config: {did_you_mean(named, source.ids)}")
        return source.subset([named])
    place = node.get("partition-id")
    if place is None and len(source) == 1:
        return source
    if not isinstance(place, int) or not 0 <= place < len(source):
        raise ConfigError(
            f'partition-id={place!r} in the node-config: expected a number from 0 to {len(source) - 1}, or client="…"'
        )
    return source.subset([source.ids[place]])


def _secret_of(context: Context, name: str, given: int | str | None) -> Any:
    """A secret from the file that the node-config names, else from the node-config, else as given."""
    if (file := context.node_config.get(f"{name}-file")) is None:
        return context.node_config.get(name, given)
    try:
        return Path(str(file)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{file}: the clients' secret cannot be read ({problem})") from problem


def _signing_key(context: Context) -> bytes | None:
    """The client's own private key, if the node-config names a file of it."""
    if (file := context.node_config.get("sums-key-file")) is None:
        return None
    try:
        return Path(str(file)).read_bytes()
    except OSError as problem:
        raise ConfigError(f"{file}: the client's signing key cannot be read ({problem})") from problem


def _masked(
    trainer: Trainer, architecture: Callable[[int], nn.Module], secret: bytes | None, privacy: str
) -> tuple[Trainer, Callable[[int], Tensor]]:
    """The trainer and the draw of initial models, both masked where the clients have a secret."""
    layout = trainer.layout
    if secret is None or privacy == "projection":
        trainer.key = secret
        return trainer, lambda seed: layout.read(architecture(seed))
    mask = Mask.from_secret(secret, layout, signed=privacy == "signed-permutation")
    return MaskedTrainer(trainer, mask), lambda seed: mask.hide(
        redrawn(layout.read(architecture(seed)), layout, secret, seed)
    )


def _kept(context: Context, file: Path | None) -> dict[str, Tensor]:
    """What this client kept from earlier rounds."""
    record = context.state.get(STATE)
    if isinstance(record, ArrayRecord):
        return {name: open_array(array) for name, array in record.items()}
    kept: dict[str, Tensor] = load_snapshot(file) if file is not None and file.exists() else {}
    kept.pop(KEPT, None)
    return kept


def _keep(context: Context, file: Path | None, state: dict[str, Tensor]) -> None:
    context.state[STATE] = ArrayRecord({name: pack_array(tensor) for name, tensor in state.items()})
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Secrets of a sum are not for a disk, and a copy of them could answer an exchange a second time.
        save_snapshot({name: tensor for name, tensor in state.items() if name != KEPT}, file)
        file.chmod(0o600)
