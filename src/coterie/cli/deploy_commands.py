"""The command that takes a run to a network: it writes a Flower app, and can try it out on this machine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from coterie.cli.main import EXIT_INTERRUPTED
from coterie.cli.options import RunCommand, config_options, examples
from coterie.cli.progress import Progress, summary_table
from coterie.cli.terminal import make_console
from coterie.errors import ConfigError, RunError
from coterie.methods import Event
from coterie.options import DEFAULT_SCENARIO
from coterie.runs.api import new_folder
from coterie.runs.config import RunConfig, make_config, overlay, read_config_file
from coterie.runs.folder import RunFolder

if TYPE_CHECKING:
    from coterie.flower.certificates import Certificates
    from coterie.flower.deploy import Deployment
    from coterie.flower.local import Network

LOOK_EVERY = 0.5
"""Seconds between two looks at the run's folder."""
LOCAL_POLL = 0.1
"""Seconds between the server's looks for answers on the loopback, where looking costs nothing."""


ONE_MACHINE = frozenset({"workers", "memory", "engine", "ray_address", "device"})
"""Options of a simulation that mean nothing where every client is a machine."""


@click.command(
    cls=RunCommand,
    epilog=examples(
        "coterie deploy --out app --method cfl --model mlp:hidden=64 --rounds 50",
        "coterie deploy --out app --data FOLDER --secure --address server.example:8000 --nodes 8",
        "coterie deploy --out app --label ill --drop name --nodes 3",
        "coterie deploy --local 4 --method ifca:k=2 --rounds 5",
    ),
)
@click.argument("config_file", required=False, metavar="[CONFIG.toml]")
@click.option("--local", "local", type=click.IntRange(min=1), metavar="N",
              help="try it here: start a SuperLink, N SuperNodes and the run, and stop them afterwards")  # fmt: skip
@click.option("--secure", is_flag=True, help="encrypt the connections, and let in only nodes with a registered key")
@click.option("--address", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT",
              help="where the nodes reach the SuperLink")  # fmt: skip
@click.option("--nodes", type=click.IntRange(min=1), metavar="N",
              help="nodes to wait for before the first round  [default: all clients]")  # fmt: skip
@config_options(leave_out=ONE_MACHINE)
def deploy(
    config_file: str | None, local: int | None, secure: bool, address: str, nodes: int | None, **given: Any
) -> None:
    """Write a ready Flower app: the app, a file of data per client, the commands.

    Without a scenario or data the nodes bring data of their own; with --label, each a table. With --local N everything
    runs on this machine's loopback for a trial, one client of the scenario a node; the same command again resumes it.
    """
    values = of_network(config_file, given)
    tables = {} if local or "data" in values else table_settings(values)
    values = {key: value for key, value in values.items() if key not in tables}
    config = make_config(for_trial(values, local) if local else values)
    if not (config.out or local):
        raise ConfigError("--out is missing: name the folder to write, or try it here with --local 4")
    if local and nodes is not None:
        raise ConfigError(f"nodes={nodes} does not go with --local {local}, which waits for all {local}")
    written, certificates = write_app(config, local, nodes=nodes, address=address, secure=secure, tables=tables)
    if local:
        try_here(written, certificates, quiet=config.quiet)
    elif not config.quiet:
        click.echo(f"{written.root}: how to start it is in {written.root / 'README.md'}")


def of_network(config_file: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a file and of the command that mean something where every client is a machine."""
    table = read_config_file(Path(config_file)) if config_file else {}
    values = overlay(table, {key: value for key, value in given.items() if value is not None})
    return {key: value for key, value in values.items() if key not in ONE_MACHINE}


def write_app(
    config: RunConfig,
    local: int | None,
    *,
    nodes: int | None,
    address: str,
    secure: bool,
    tables: Mapping[str, Any],
) -> tuple[Deployment, Certificates | None]:
    """Write the app and, where connections are encrypted, the keys; nothing is left where that fails."""
    from coterie.flower.deploy import check_address, removed_on_failure, write_deployment

    host, _ = check_address(address)
    root = Path(config.out) if config.out else new_folder(config, "deployed")
    with removed_on_failure(root):
        written = write_deployment(root, config, nodes=nodes, address=address, secure=secure, tables=tables)
        certificates = make_keys(written, host) if secure else None
        if local and len(written.nodes) != local:
            raise ConfigError(f"--local {local} with {len(written.nodes)} clients: a trial has one node per client")
    return written, certificates


def table_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """How nodes read tables of their own: the options of tables that are given, if the label is."""
    from coterie.flower.deploy import TABLE_SETTINGS

    given = {key: values[key] for key in TABLE_SETTINGS if values.get(key) is not None}
    return given if "label" in given else {}


def try_here(written: Deployment, certificates: Certificates | None, *, quiet: bool) -> None:
    """Run a deployment on this machine, and show what it reached."""
    from coterie.flower.deploy import marked_on_failure

    if (written.run / "summary.json").exists():
        raise RunError(f"{written.run}: this run is already complete: choose another --out to run it again")
    with marked_on_failure(written):
        try_out(written, certificates, quiet=quiet)
    if quiet:
        return
    console = make_console()
    if (summary := RunFolder(written.run).summary()) is not None:
        console.print(summary_table([summary]))
    console.print(f"results: {escape(str(written.run))}", soft_wrap=True)


def for_trial(values: dict[str, Any], nodes: int) -> dict[str, Any]:
    """The configuration of a trial: a scenario if none is named, with one client per node."""
    if "data" in values:
        return values
    if str(values.get("clients") or nodes) != str(nodes):
        raise ConfigError(f"clients={values['clients']} with --local {nodes}: a trial has one node per client")
    return {"scenario": DEFAULT_SCENARIO} | values | {"clients": nodes}


def make_keys(written: Deployment, host: str) -> Certificates:
    """Certificates for the server and a key for every node, in the deployment's folder."""
    from coterie.flower.certificates import make_certificates, make_node_key

    for i in range(max(1, len(written.nodes))):
        make_node_key(written.keys, f"node-{i}")
    return make_certificates(written.keys, list(dict.fromkeys([host, "localhost", "127.0.0.1"])))


def try_out(written: Deployment, certificates: Certificates | None, *, quiet: bool) -> None:
    """Run a deployment on this machine's loopback, show how it goes, and stop all that was started."""
    from coterie.flower.local import Network

    progress = Progress(quiet=quiet)

    def say(text: str) -> None:
        if not quiet:
            progress.console.print(escape(text), soft_wrap=True)

    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Network(written.state, certificates) as network:
            how = " with TLS and node keys" if certificates else ""
            say(f"SuperLink on {network.address}{how}; logs in {network.log('superlink').parent}")
            if network.notice:
                say(network.notice)
            for i, settings in enumerate(written.nodes):
                key = written.keys / f"node-{i}" if certificates else None
                if key:
                    network.register(key)
                network.add_node(f"node-{i}", settings, key)
            say(f"{len(written.nodes)} SuperNodes started; the first round comes when all have reported")
            with progress:
                follow(network, written, progress, say)
    except KeyboardInterrupt:
        click.echo(
            f"coterie: stopped all that was started; the same command with --out {written.root} goes on", err=True
        )
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def follow(network: Network, written: Deployment, progress: Progress, say: Callable[[str], None]) -> None:
    """Start the run and show each round that its folder gains, until it is complete; dead nodes start again."""
    folder = RunFolder(written.run)
    progress.rounds, progress.began = written.settings["rounds"], time.monotonic()
    progress.first = shown = len(folder.history())
    run = network.submit(written.app, {"poll": LOCAL_POLL})
    over = False
    while not over:
        over = run.poll() is not None  # before the look, so that what comes last is shown too
        records = folder.history()
        for record in records[shown:]:
            for fault in record.faults:
                say(f"round {record.round}: {fault.client} left out: {fault.reason}")
            for event in record.events:
                progress.on_event(record.round, Event(event.kind, event.text))
            progress.on_round(record)
        shown = len(records)
        for name in network.tend():
            say(f"{name} had ended and was started again")
        time.sleep(0 if over else LOOK_EVERY)
    if not folder.has("summary.json"):
        raise RunError(f"the run ended before its last round: {network.last_words('run')}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
