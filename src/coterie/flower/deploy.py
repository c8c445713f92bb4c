"""Write a Flower app from a run's configuration: the app's folder, a file of data for each client, the commands."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from coterie import __version__, models
from coterie.data.scenario import Defaults
from coterie.errors import ConfigError
from coterie.federation import PARTS, Client, Federation
from coterie.federation.corrections import CORRECTIONS
from coterie.federation.table_sites import client_names, find_tables
from coterie.flower import SWITCHES
from coterie.flower.certificates import make_node_key, public_key
from coterie.flower.demands import tasks_beside_sums
from coterie.flower.local import CONNECTION, node_config
from coterie.flower.server import read_options
from coterie.methods import make_method
from coterie.methods.needs import check_network
from coterie.runs.api import known_model
from coterie.runs.assemble import loss_of, make_architecture, make_federation
from coterie.runs.config import DATA_KEYS, TABLE_KEYS, RunConfig
from coterie.runs.target_scaling import TargetScaling
from coterie.snapshot import write_atomically
from coterie.trainers.schedules import make_schedule

AT_THE_NODES = frozenset({"data", "clients", "samples", "groups", *DATA_KEYS})
"""Keys that say which data there is: on a network the nodes have it, the server need not know."""
TABLE_SETTINGS = ({*TABLE_KEYS} | {"task"}) - {"client_column"}
"""How nodes read tables of their own."""
NETWORK_DEFAULTS = {"min-replies": 0.5, "timeout": 600.0, "wait": 600.0, "poll": 1.0, "fold-bytes": 2**20}
"""What the server does when nodes fail (`flower.server.NetworkConfig`), written out so that a run can change it."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
CLIENT_KEYS = "clients.json"
"""The list of the clients' public keys, for every node."""
FIRST_NODE_PORT = 9094
"""Where a SuperNode talks to its own ClientApp, on its own loopback; nodes on one machine count up from it."""
FAILED = "failed.txt"
"""Why a trial failed before its first round; a corrected command takes the place of such a deployment."""

SERVER_APP = '''"""The server: it waits for the nodes, trains with them, and keeps the folder `out` up to date."""

from coterie.flower import server_app

app = server_app()
'''

CLIENT_APP = '''"""A node: it does what the server asks for on data of its own, which never leaves it."""

from coterie.flower import client_app


def own_data(context):
    """The file that this node's --node-config names: .npz, .csv or .parquet. Other data can be read here."""
    return context.node_config["data"]


app = client_app(data=own_data)
'''


@dataclass(frozen=True)
class Deployment:
    """The files of a deployment under `root`; only `app` is sent to the nodes."""

    root: Path
    nodes: tuple[dict[str, Any], ...]
    """What each SuperNode is given in its --node-config: its client, and on its own disk the files that it reads."""
    settings: Mapping[str, Any]
    """The run's configuration as the app has it."""

    @property
    def app(self) -> Path:
        """The Flower app."""
        return self.root / "app"

    @property
    def run(self) -> Path:
        """The run's folder, on the server."""
        return self.root / "run"

    @property
    def keys(self) -> Path:
        """Certificates and keys."""
        return self.root / "keys"

    @property
    def state(self) -> Path:
        """What Flower itself keeps in a trial on one machine."""
        return self.root / "flower"


def plan(config: RunConfig) -> tuple[Federation | None, dict[str, Any]]:
    """The federation (None: the nodes bring their own) and the run's settings, checked.

    The server has no scenario to take defaults from, so every setting is written out.
    """
    method = make_method(config.method)
    check_network(method, config.secure_sums)
    federation, defaults = make_federation(config) if config.scenario or config.data else (None, Defaults())
    network = config.model or defaults.model
    _check_model(network, federation, config)
    training, rounds = config.training(defaults.training), config.rounds or defaults.rounds
    make_schedule(config.lr_schedule, training, rounds)
    settings = {key: value for key, value in config.identity().items() if key not in AT_THE_NODES} | {
        "model": network,
        "rounds": rounds,
        "lr": training.lr,
        "epochs": None if training.steps else training.epochs,
        "steps": training.steps,
        "batch_size": training.batch_size or "full",
        "momentum": training.momentum,
        "weight_decay": training.weight_decay,
    }
    if reads_tables(config):
        settings |= {key: getattr(config, key) for key in TABLE_SETTINGS}
    return federation, {key: value for key, value in settings.items() if value is not None}


def _check_model(network: str, federation: Federation | None, config: RunConfig) -> None:
    """Refuse a model that does not go with the data or, where that is not known, that there is none of."""
    if federation is not None:
        make_architecture(network, federation, loss_of(config))
    elif not known_model(network):
        models.build(network, (1,), 2, 0)  # says what is known


def write_deployment(
    root: Path,
    config: RunConfig,
    *,
    nodes: int | None = None,
    address: str = "127.0.0.1:8000",
    secure: bool = False,
    tables: Mapping[str, Any] | None = None,
) -> Deployment:
    """Write the app, the clients' data and the commands to `root`, or find there what the same call has written.

    `nodes` is how many must be there before the first round: all clients, if there is a scenario or a folder of data.
    `tables` says how nodes read tables of their own, where the data is not here. A folder with anything else in it is
    refused.
    """
    root = root.absolute()
    federation, settings = plan(config)
    files = data_files(root, config, federation) if federation is not None else {}
    shared = _shared_settings(root, config)
    planned = tuple(
        {"client": client, "data": str(file), "state-dir": str(root / "kept" / f"node-{i}")}
        | ({"sums-key-file": str(root / "keys" / f"node-{i}")} if config.secure_sums else {})
        | shared
        for i, (client, file) in enumerate(files.items())
    )
    least = nodes or len(planned) or 2
    if planned and least > len(planned):
        raise ConfigError(f"nodes={least}, but there are {len(planned)} clients: wait for {len(planned)} at most")
    settings |= {"out": str(root / "run"), "min-nodes": least} | NETWORK_DEFAULTS | dict(tables or {})
    settings |= _server_settings(config, federation, secure)
    if config.secure_sums and planned:
        settings["sums-clients"] = str(root / "keys" / CLIENT_KEYS)
    read_options({key.replace("-", "_"): value for key, value in settings.items()})  # as the server will
    deployment = Deployment(root, planned, settings)
    guide = instructions(deployment, address, secure)
    _claim(root, project_file(settings, extras(config.method)))
    if federation is not None:
        _write_data(root, federation, files)
    if "secret-file" in shared:
        write_secret(Path(shared["secret-file"]))
    if config.secure_sums and planned:
        write_client_keys(root / "keys", [node["client"] for node in planned])
    for name, text in {"server_app.py": SERVER_APP, "client_app.py": CLIENT_APP}.items():
        if not (deployment.app / name).exists():  # it may have been changed since
            write_atomically(deployment.app / name, text.encode())
    write_atomically(root / "README.md", guide.encode())
    return deployment


def _server_settings(config: RunConfig, federation: Federation | None, secure: bool) -> dict[str, Any]:
    """What the server must know of the nodes and their data."""
    settings: dict[str, Any] = {}
    if federation is not None and federation.classes:
        settings["classes"] = federation.classes
    if secure:
        settings["node-keys"] = True
    if config.scenario:
        settings["trial-groups"] = True  # a made federation has no secrets, and its groups are a metric
    return settings


def reads_tables(config: RunConfig) -> bool:
    """Whether nodes read tables as they lie: a file per client, not corrected, no column of which names blocks."""
    corrected = Path(config.data or "").suffix.lower() == CORRECTIONS
    divided = config.client_column is not None or config.block_column is not None
    return config.label is not None and not corrected and not divided


def data_files(root: Path, config: RunConfig, federation: Federation) -> dict[str, Path]:
    """Where the data of each client is: where it was given if nodes can read that, else below `root`."""
    if config.data is not None and reads_tables(config):
        found = find_tables(config.data)
        return dict(zip(client_names(found), (file.absolute() for file in found), strict=True))
    if config.data is not None and config.task is None and federation.label_names is None:
        given = {client: Path(config.data).absolute() / f"{client}.npz" for client in federation.ids}
        if all(file.exists() for file in given.values()):
            return given
    return {client: root / "clients" / f"{quote(client, safe=' ')}.npz" for client in federation.ids}


def _shared_settings(root: Path, config: RunConfig) -> dict[str, Any]:
    """What all SuperNodes are given: what the clients share, and what a node asks of secure sums."""
    settings: dict[str, Any] = {}
    if config.privacy != "none":
        settings["secret-file"] = str(root / "keys" / "secret")
    if config.secure_sums:
        # A node that has this list sends updates into secure sums only, of that many of its clients or more.
        settings["sums-clients-file"] = str(root / "keys" / CLIENT_KEYS)
        settings["least-in-sum"] = config.secure_minimum
        if beside := tasks_beside_sums(config.method):
            settings["sums-allow"] = ",".join(beside)
    return settings


def _write_data(root: Path, federation: Federation, files: Mapping[str, Path]) -> None:
    """Write the data of clients that nodes cannot read as it was given."""
    below = {client for client, file in files.items() if file.is_relative_to(root)}
    trained = TargetScaling.of(federation.table).federation(federation)
    for client in trained:
        if client.id in below:
            write_client(client, files[client.id])
    if below and federation.table is not None:
        table = json.dumps(federation.table.to_json(), indent=2, ensure_ascii=False) + "\n"
        write_atomically(root / "table.json", table.encode())


def _claim(root: Path, project: str) -> None:
    """Make the folder with the app's pyproject.toml; one that exists must be empty or hold this very deployment."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root}: a file of that name exists: choose another --out")
    mine = root / "app" / "pyproject.toml"
    if mine.exists():
        if mine.read_text(encoding="utf-8") != project:
            _replace_failed(root, mine, project)
        (root / FAILED).unlink(missing_ok=True)
        return
    if root.exists() and any(root.iterdir()):
        raise ConfigError(f"{root}: the folder is not empty and is not a deployment's: choose another --out")
    try:
        mine.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(f"{root}: cannot make the folder ({problem.strerror}): choose another --out") from problem
    write_atomically(mine, project.encode())


def _replace_failed(root: Path, mine: Path, project: str) -> None:
    """Let a deployment whose trial failed before its first round give way to the corrected one.

    The apps are kept, which may have been changed.
    """
    failed = root / FAILED
    if not failed.exists():
        raise ConfigError(f"{root}: holds a deployment with other settings: choose another --out")
    for made in (path for path in root.iterdir() if path not in (mine.parent, failed)):
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    write_atomically(mine, project.encode())


@contextmanager
def removed_on_failure(root: Path) -> Iterator[None]:
    """Remove what was written to a new or empty folder if what is done meanwhile fails.

    The corrected command then finds its place free. An interrupt keeps the folder: the same command goes on.
    """
    fresh = not root.exists() or (root.is_dir() and not any(root.iterdir()))
    try:
        yield
    except Exception:
        if fresh:
            shutil.rmtree(root, ignore_errors=True)
        raise


@contextmanager
def marked_on_failure(deployment: Deployment) -> Iterator[None]:
    """Note why a trial failed before its first round was done, so that other settings may take its place."""
    try:
        yield
    except Exception as problem:
        if not (deployment.run / "history.jsonl").exists():
            write_atomically(deployment.root / FAILED, f"{problem}\n".encode())
        raise


def write_client(client: Client, path: Path) -> None:
    """One client's data as a .npz file, whole or not at all; one that is there already is kept."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"{axis}_{part}": getattr(client.part(part), axis).numpy() for part in PARTS for axis in ("x", "y")}
    if client.group is not None:
        arrays["group"] = np.asarray(client.group)
    if client.train.block is not None:
        arrays["block"] = client.train.block.numpy()
    half_written = path.with_name(f".{path.name}.tmp.npz")
    np.savez_compressed(half_written, **arrays)
    half_written.replace(path)


def write_secret(path: Path) -> None:
    """What the clients share and the server must not know; one that is there already is kept."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32) + "\n")


def write_client_keys(folder: Path, clients: Sequence[str]) -> None:
    """A key for every client, and the list of them that nodes know each other by."""
    made = [public_key(make_node_key(folder, f"node-{i}")).read_text().strip() for i in range(len(clients))]
    text = json.dumps(dict(zip(clients, made, strict=True)), indent=2, ensure_ascii=False)
    write_atomically(folder / CLIENT_KEYS, f"{text}\n".encode())


def extras(method: str) -> str:
    """The optional parts of this package that the app needs."""
    return "flower,flt" if method.partition(":")[0] == "flt" else "flower"


def project_file(settings: Mapping[str, Any], needs: str = "flower") -> str:
    """The app's pyproject.toml: its two components and every setting of the run."""
    table = "\n".join(f"{key} = {toml_value(value)}" for key, value in settings.items())
    return f"""[project]
name = "coterie-app"
version = "1.0.0"
description = "Clustered federated learning with Coterie"
license = "Apache-2.0"
dependencies = ["coterie[{needs}]=={__version__}"]

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

# Each can be given again for one run: flwr run app {CONNECTION} -c 'rounds=20'
[tool.flwr.app.config]
{table}
"""


def toml_value(value: Any) -> str:
    """A plain value in TOML."""
    if isinstance(value, float) and value.is_integer():
        return f"{value:.1f}"
    return json.dumps(value, ensure_ascii=False)


def check_address(address: str) -> tuple[str, int]:
    """The host and the port in `host:port`."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):(\d{1,5})", address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ConfigError(f"address={address!r}: expected host:port, e.g. server.example.org:8000")
    return match[1].strip("[]"), int(match[2])


def instructions(deployment: Deployment, address: str, secure: bool) -> str:
    """The commands that start what was written, for the people who run the server and the nodes."""
    host, port = check_address(address)
    listen = host if host in LOOPBACK else "0.0.0.0"
    link = [
        f"flower-superlink --host {listen} --port {port} --database state.db",
        "--disable-runtime-dependency-installation",
    ]
    if secure:
        link += ["--ssl-ca-certfile keys/ca.crt --ssl-certfile keys/server.pem --ssl-keyfile keys/server.key"]
        link += ["--enable-supernode-auth"]
    else:
        link += ["--insecure"]
    trust = f"root-certificates = {toml_value(str(deployment.keys / 'ca.crt'))}" if secure else "insecure = true"
    file = "its-table.csv" if "label" in deployment.settings else "its-data.npz"
    example = {"client": "a-name-of-its-own", "data": f"/path/of/{file}", "state-dir": "/path/of/what-it-keeps"}
    nodes = [_node_command(i, node, address, secure) for i, node in enumerate(deployment.nodes or (example,))]
    keys = [f"flwr supernode register keys/node-{i}.pub {CONNECTION}" for i in range(len(nodes))]
    continued = " \\\n        "
    register = f"\nLet the nodes in, by their public keys:\n\n{_indented(keys)}\n" if secure else ""
    return f"""# A deployment made by Coterie

`app/` is what is sent to the nodes; nothing else leaves this folder. Coterie must be installed on the server and on
every node. In every terminal first:

{_indented([f"export {name}={value}" for name, value in SWITCHES.items()])}

## The server

Name the SuperLink for `flwr`, in `$FLWR_HOME/config.toml` (by default `~/.flwr/config.toml`):

    [superlink.{CONNECTION}]
    address = "{address}"
    {trust}

Start the SuperLink, in this folder:

{_indented([continued.join(link)])}
{register}
## The nodes, each on its own machine

{_indented(nodes)}

## The run

    flwr run app {CONNECTION} --stream

Its results are in `{deployment.run}` on the server. The same command after a crash resumes from the last round there.
"""


def _node_command(number: int, settings: Mapping[str, Any], address: str, secure: bool) -> str:
    trust = "--insecure"
    if secure:
        trust = f"--root-certificates keys/ca.crt --auth-supernode-private-key keys/node-{number}"
    port, config = FIRST_NODE_PORT + number, node_config(settings)
    return f'flower-supernode --superlink {address} {trust} --port {port} --node-config "{config}"'


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
