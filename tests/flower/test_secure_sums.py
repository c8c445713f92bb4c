"""Secure sums over messages: the plain run's result, what the server receives, and what stays closed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_trials import MODEL, QUICK, TRAINING, digits, grid_of
from flwr.app import RecordDict
from scipy import stats

from coterie.data.scenarios import find_scenario
from coterie.engines.secure_exchange import SecureExchange
from coterie.errors import ConfigError, RunError
from coterie.flower import InProcessGrid, client_app
from coterie.flower.certificates import make_node_key, public_key
from coterie.flower.demands import check_names, check_task, tasks_beside_sums
from coterie.flower.server import run_on
from coterie.flower.wire import open_array
from coterie.parameters import Layout
from coterie.privacy.client_keys import certify, new_signing_key, owner_from_line, owner_of
from coterie.privacy.projection import CompareHalves
from coterie.privacy.secure_sum import SecureClient
from coterie.privacy.secure_tasks import (
    KEPT,
    SIGNING_KEY,
    Masked,
    as_bytes,
    as_numbers,
    halves,
    remember,
    remembered,
    whole,
)
from coterie.privacy.sum_terms import Terms, keys_text
from coterie.privacy.whole_numbers import Quantiser
from coterie.snapshot import load_snapshot
from coterie.tasks import HalfUpdates, Train
from coterie.tasks.train import Collect
from coterie.trainers.base import SumRules, Training
from coterie_field.mixture_tasks import MixtureTraining
from coterie_field.subspaces import Subspaces

FEDERATION = digits(6)


class Received:
    """A hook that sees all that the server receives, and makes some clients silent in the exchange of vectors."""

    def __init__(self, silent: tuple[str, ...] = ()) -> None:
        self.masked: list[torch.Tensor] = []
        self.vectors = 0
        self.silent = {1001 + FEDERATION.ids.index(client) for client in silent}

    def __call__(self, message: Any) -> Any:
        arrays = message.content.get("arrays", {}) if message.has_content() else {}
        self.vectors += "vector" in arrays
        if "masked" in arrays:
            if message.metadata.src_node_id in self.silent:
                return None
            self.masked.append(open_array(arrays["masked"]))
        return message


def run(method: str, tamper: Any = None, rounds: int = 2, **options: Any) -> Any:
    given = TRAINING | QUICK | {"method": method, "rounds": rounds, "min_nodes": 6, "timeout": 2.0} | options
    return run_on(grid_of(FEDERATION, tamper=tamper), given)


BY_PARITY = f"groups:of={ {f'client-{i}': i % 2 for i in range(6)} }"


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox:mu=0.1", "ifca:k=2,init=random", "ditto", "fedcuau:clusters=2", BY_PARITY]
)
def test_the_result_is_the_plain_runs_up_to_the_stated_rounding(method: str) -> None:
    seen = Received()
    secure, plain = run(method, seen, seed=7, secure_sums=True, secure_minimum=2), run(method, seed=7)
    assert not [fault for record in secure.history for fault in record.faults]
    assert secure.clusters == plain.clusters
    error = 2 * Quantiser.for_sums(1.0, 6).step
    for ours, theirs in zip(secure.models, plain.models, strict=True):
        assert float((ours - theirs).abs().max()) < 50 * error + 1e-6  # rounding is carried on by the second round
    for ours, theirs in zip(secure.clients, plain.clients, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)  # also of models that clients keep to themselves
    assert seen.vectors == 0
    assert len(seen.masked) == (18 if method.startswith("fedcuau") else 12)  # it begins with a sum of its own


@pytest.mark.usefixtures("unshortened_halves")
def test_private_cfl_splits_as_in_the_clear_and_shows_no_vector() -> None:
    federation = find_scenario("digits-permuted").build(clients=6, groups=2, samples=120, seed=3)
    privacy, seen = {"privacy": "projection"}, Received()
    sums = {"secure_sums": True, "secure_minimum": 2}
    given = TRAINING | QUICK | {"rounds": 5, "min_nodes": 6, "timeout": 2.0}
    configs = [{"client": client} for client in federation.ids]
    sworn = InProcessGrid(
        client_app(MODEL, federation, secret="0" * 64), node_configs=configs, run_config=dict(privacy), tamper=seen
    )
    secure = run_on(sworn, given | privacy | {"method": "cfl:compare=projection(256)"} | sums)
    clear = run_on(grid_of(federation), given | {"method": "cfl"})
    assert [len(own) for own in clear.clusters] == [3, 3]
    assert secure.clusters == clear.clusters
    for ours, theirs in zip(secure.models, clear.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert not [fault for record in secure.history for fault in record.faults]
    assert seen.vectors == 0
    # Masked are the updates of five rounds, and the half-updates of one look.
    assert {numbers.shape[1] for numbers in seen.masked} == {1210, 2 * 1210}


def test_a_client_that_drops_out_after_the_shares_does_not_spoil_the_sum() -> None:
    lost = ("client-4",)
    secure = run("fedavg", Received(lost), rounds=1, secure_sums=True)
    assert {fault.client for fault in secure.history[0].faults} == set(lost)
    rest = FEDERATION.subset([client for client in FEDERATION.ids if client not in lost])
    plain = run_on(grid_of(rest), TRAINING | QUICK | {"method": "fedavg", "rounds": 1, "min_nodes": 5})
    torch.testing.assert_close(secure.models[0], plain.models[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "exact"),
    [
        ("fedavg:weighting=uniform", "fedavg:weighting=uniform"),
        ("ifca:k=2,init=random,hide_choice=true", "ifca:k=2,init=random"),
    ],
)
def test_clients_add_their_noise_before_the_masks_and_tell_no_norm(method: str, exact: str) -> None:
    heard, quiet = Heard(), {"dp_noise": 1e-4, "dp_clip": 0.3, "seed": 7}
    secure, plain = run(method, heard, secure_sums=True, **quiet), run(exact, **quiet)
    assert not [fault for record in secure.history for fault in record.faults]
    for ours, theirs in zip(secure.models, plain.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
    assert secure.summary.epsilon == plain.summary.epsilon
    assert "masked" in heard.names()
    assert "norm" not in heard.names()
    loud = Heard()
    run("fedavg", loud, rounds=1, secure_sums=True)
    assert {"masked", "norm"} <= loud.names()  # without noise it is there
    noisy = run(method, dp_noise=3.0, dp_clip=0.3, seed=7, rounds=1, secure_sums=True)
    assert float((noisy.models[0] - secure.models[0]).std()) > 0.1


def test_a_run_with_noise_writes_no_file_on_a_network_that_the_security_page_does_not_list(tmp_path: Path) -> None:
    given = TRAINING | QUICK | {"method": "fedavg:weighting=uniform", "rounds": 2, "min_nodes": 6, "timeout": 2.0}
    run_on(grid_of(FEDERATION), given | {"secure_sums": True, "dp_noise": 1.0, "dp_clip": 0.3}, tmp_path / "run")
    names = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    listed = page[page.index("| file of a run with noise") :].partition("never written")[0]
    patterns = [word.replace("ID", "*") for word in re.findall(r"`([^`]+)`", listed)]
    assert {"history.jsonl", "flower.json", "models/cluster-0.safetensors"} <= names
    assert not [name for name in names if not any(Path(name).match(pattern) for pattern in patterns)]


def test_with_too_few_left_nothing_is_opened() -> None:
    with pytest.raises(RunError, match="sound reply"):
        run("fedavg", Received(("client-0", "client-1", "client-2", "client-3")), rounds=1, secure_sums=True)
    closed = run("fedavg", None, rounds=1, secure_sums=True, secure_minimum=7)
    assert {fault.client for fault in closed.history[0].faults} == set(FEDERATION.ids)
    assert "stays closed" in closed.history[0].faults[0].reason
    start = run("fedavg", None, rounds=1, lr=1e-30)
    torch.testing.assert_close(closed.models[0], start.models[0])


def test_what_the_server_receives_of_an_update_cannot_be_told_from_random() -> None:
    seen = Received()
    run("fedavg", seen, rounds=1, secure_sums=True)
    for numbers in seen.masked:
        words = whole(numbers)
        assert stats.kstest(words / 2**32, "uniform").pvalue > 1e-4
        assert abs(np.corrcoef(words[:-1], words[1:])[0, 1]) < 0.1
    assert all(not torch.equal(x, y) for i, x in enumerate(seen.masked) for y in seen.masked[:i])


@pytest.mark.parametrize("method", ["cfl", "fedsem:clusters=2", "flhc:warmup_rounds=0"])
def test_a_task_that_would_show_a_single_update_is_never_sent(method: str) -> None:
    seen = Received()
    with pytest.raises(ConfigError, match="single updates"):
        run(method, seen, secure_sums=True)
    assert seen.vectors == 0


def test_words_and_bytes_come_through_exactly() -> None:
    words = np.array([0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1], dtype=np.uint32)
    np.testing.assert_array_equal(whole(halves(words)), words)
    assert as_bytes(as_numbers(bytes(range(256)))) == bytes(range(256))


def test_a_client_remembers_its_side_of_a_sum() -> None:
    state: dict[str, torch.Tensor] = {}
    client, other = SecureClient(1), SecureClient(2)
    remember(state, client)
    assert remembered(state) == client
    client.shares(Terms("sum", ("task",), {1: client.keys(), 2: other.keys()}, {1: 1.0, 2: 0.5}, 2, 2, 1.0, (1.0, 2.0)))
    remember(state, client)
    assert remembered(state) == client


class Heard:
    """A hook that keeps all that the server receives: for each node and message, its arrays and all other values."""

    def __init__(self) -> None:
        self.arrays: dict[int, list[dict[str, torch.Tensor]]] = {}
        self.others: dict[int, list[dict[str, Any]]] = {}

    def __call__(self, message: Any) -> Any:
        node, content = message.metadata.src_node_id, dict(message.content.items())
        arrays = {name: open_array(array) for name, array in content.pop("arrays", {}).items()}
        self.arrays.setdefault(node, []).append(arrays)
        self.others.setdefault(node, []).append({name: dict(record) for name, record in content.items()})
        return message

    def names(self) -> set[str]:
        """What the values that were sent are called."""
        arrays = {name for messages in self.arrays.values() for message in messages for name in message}
        records = [record for messages in self.others.values() for message in messages for record in message.values()]
        return arrays | {name for record in records for name in record}


def test_from_all_that_the_server_receives_a_hidden_choice_cannot_be_told() -> None:
    heard, method = Heard(), "ifca:k=2,init=random"
    options = {"seed": 7, "secure_sums": True, "secure_minimum": 2, "rounds": 3}
    hidden, seen = run(f"{method},hide_choice=true", heard, **options), run(method, **options)
    assert not [fault for record in hidden.history for fault in record.faults]
    assert hidden.summary.sizes == [len(own) for own in seen.clusters] == [3, 3]
    for ours, theirs in zip(hidden.models, seen.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert hidden.summary.accuracy.mean == pytest.approx(seen.summary.accuracy.mean, abs=1e-5)
    random = {"keys", "boxes", "commitments", "proof", "masked", "signature", "shares"}
    told = []
    for node, messages in heard.arrays.items():
        shapes = [{name: tuple(array.shape) for name, array in message.items()} for message in messages]
        assert {name for message in shapes for name in message} == random | {"wrong"}
        assert all(not array.any() for message in messages for name, array in message.items() if name == "wrong")
        others = [
            {name: value for name, value in message.items() if name != "client"} for message in heard.others[node]
        ]
        told.append((shapes, others))
    # All that is not under masks, a key or a sealed share is the same from everybody, whatever they chose.
    assert len(told) == 6
    assert all(one == told[0] for one in told[1:])
    masked = [message["masked"] for messages in heard.arrays.values() for message in messages if "masked" in message]
    assert len(masked) == 6 * (3 * 2 + 3)  # two sums per round, and one per evaluation
    for numbers in masked:
        words = whole(numbers)
        if len(words) > 1000:  # both blocks, one of which is zeros under its masks
            for block in np.split(words, 2):
                assert stats.kstest(block / 2**32, "uniform").pvalue > 1e-4


def test_one_shot_shows_models_once_and_its_rounds_are_secure() -> None:
    seen, method = Received(), "oneshot:k=2,warmup_rounds=1,show_models=true"
    secure = run(method, seen, rounds=3, secure_sums=True, secure_minimum=2)
    plain = run("oneshot:k=2,warmup_rounds=1", rounds=3)
    assert secure.clusters == plain.clusters
    for ours, theirs in zip(secure.models, plain.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert "seen by the server this once" in secure.history[0].events[0].text
    assert len(seen.masked) == 2 * 6
    with pytest.raises(ConfigError, match="show_models=true"):
        run("oneshot:k=2,warmup_rounds=1", rounds=3, secure_sums=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A node key of every client, as `coterie deploy` makes them."""
    folder = tmp_path_factory.mktemp("keys")
    return {client: make_node_key(folder, client) for client in FEDERATION.ids}


def run_sworn(keys: dict[str, Path], method: str = "fedavg", without: tuple[str, ...] = (), **options: Any) -> Any:
    """A run whose nodes send updates into secure sums of the listed clients only."""
    clients = keys[FEDERATION.ids[0]].parent / "clients.json"
    clients.write_text(json.dumps({client: public_key(key).read_text() for client, key in keys.items()}))
    given = {"sums-clients-file": str(clients), "sums-allow": ",".join(tasks_beside_sums(method))}
    configs = [
        {"client": client} | given | ({} if client in without else {"sums-key-file": str(keys[client])})
        for client in FEDERATION.ids
    ]
    grid = InProcessGrid(client_app(MODEL, FEDERATION), node_configs=configs)
    return run_on(
        grid,
        TRAINING | QUICK | {"method": method, "rounds": 1, "min_nodes": 6, "timeout": 2.0, "seed": 7} | options,
    )


def test_nodes_that_know_each_others_keys_form_the_sums_of_others(keys: dict[str, Path]) -> None:
    sworn, plain = run_sworn(keys, secure_sums=True), run("fedavg", rounds=1, seed=7, secure_sums=True)
    assert not sworn.history[0].faults
    torch.testing.assert_close(sworn.models[0], plain.models[0], rtol=0, atol=1e-7)


def test_a_node_that_demands_secure_sums_sends_no_update_in_the_clear(keys: dict[str, Path]) -> None:
    with pytest.raises(RunError, match="sends single updates nowhere"):
        run_sworn(keys)
    with pytest.raises(RunError, match="sums of 2 would be opened, and this client demands 3"):
        run_sworn(keys, secure_sums=True, secure_minimum=2)


@pytest.mark.parametrize(
    "method", ["ifca:k=2,init=random,hide_choice=true", "fedcuau:clusters=2", "ditto", "fedem:components=2"]
)
def test_methods_run_on_nodes_that_answer_little_else(keys: dict[str, Path], method: str) -> None:
    assert not run_sworn(keys, method, secure_sums=True).history[0].faults


def test_a_node_that_demands_secure_sums_answers_nothing_that_tells_of_it_alone() -> None:
    model, layout = torch.zeros(10), Layout.of(torch.nn.Linear(10, 1, bias=False))
    how = Training(lr=0.1)
    single = [
        Train(model, how, 0),
        CompareHalves(model, how, 0, 0, width=8),
        Collect(model, ("weight",), shown=True),
        Subspaces(64),
        HalfUpdates(model, how, 0, 0),
    ]
    rules = SumRules(frozenset(), 3)
    for task in single:
        with pytest.raises(ConfigError, match="only if its operator says so"):
            check_task(task, rules, layout)
    allowed = rules._replace(allowed=("Train", "MixtureTraining"))
    check_task(Train(model, how, 0, private=("weight",)), allowed, layout)  # nothing but its loss leaves the client
    with pytest.raises(ConfigError, match="sends single updates nowhere"):
        check_task(Train(model, how, 0), allowed, layout)
    check_task(Masked(Train(model, how, 0), (), torch.zeros(0, 32)), rules, layout)
    mixture = MixtureTraining(model[None], torch.ones(1), how, 0)
    check_task(Masked(mixture, (), torch.zeros(0, 32)), allowed, layout)
    with pytest.raises(ConfigError, match="puts no MixtureTraining"):
        check_task(Masked(mixture, (), torch.zeros(0, 32)), rules, layout)
    with pytest.raises(ConfigError, match="sends single updates nowhere"):
        check_task(mixture, allowed, layout)
    with pytest.raises(ConfigError, match="puts no Subspaces into secure sums"):
        check_task(Masked(Subspaces(64), (), torch.zeros(0, 32)), rules, layout)
    with pytest.raises(ConfigError, match="Divergence"):
        check_names(["Divergense"])


def test_what_a_client_remembers_of_a_sum_is_in_no_file(tmp_path: Path) -> None:
    configs = [{"client": client, "state-dir": str(tmp_path / client)} for client in FEDERATION.ids]
    grid = InProcessGrid(client_app(MODEL, FEDERATION), node_configs=configs)
    given = TRAINING | QUICK | {"method": "ditto", "rounds": 1, "min_nodes": 6, "timeout": 2.0, "secure_sums": True}
    run_on(grid, given)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 6
    assert all("private" in load_snapshot(path) and KEPT not in load_snapshot(path) for path in files)


def test_keys_of_a_client_that_nobody_registered_are_not_used(keys: dict[str, Path]) -> None:
    with pytest.raises(RunError, match="client 3 of the sum is none of the registered clients"):
        run_sworn(keys, without=(FEDERATION.ids[2],), secure_sums=True)


def test_a_server_with_the_list_names_who_is_not_on_it_and_forms_the_sum_of_the_others(keys: dict[str, Path]) -> None:
    stranger, clients = FEDERATION.ids[2], str(keys[FEDERATION.ids[0]].parent / "clients.json")
    result = run_sworn(keys, without=(stranger,), secure_sums=True, sums_clients=clients)
    assert [fault.client for fault in result.history[0].faults] == [stranger]
    assert "another key than is registered for it" in result.history[0].faults[0].reason


@pytest.mark.parametrize("own", [True, False])
def test_a_server_that_hands_out_its_own_keys_is_found_out(
    keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Keys in a client's name that a stranger certifies, or none."""
    honest, stranger = SecureExchange._share, new_signing_key()

    def cheating(self: SecureExchange, clusters: Any) -> None:
        for cluster in clusters.values():
            owner = owner_of(stranger) if own else owner_from_line(public_key(keys[FEDERATION.ids[1]]).read_text())
            mine = SecureClient(2).keys()._replace(owner=owner)
            certificate = certify(stranger, keys_text(self.name, 2, mine))
            cluster.offered[2] = as_numbers(b"".join(mine) + certificate)
        honest(self, clusters)

    monkeypatch.setattr(SecureExchange, "_share", cheating)
    words = "none of the registered clients" if own else "not certified for this sum"
    with pytest.raises(RunError, match=f"client 2 of the sum (is|are) {words}"):
        run_sworn(keys, secure_sums=True)


def test_a_client_without_a_file_keeps_the_key_that_it_made(tmp_path: Path) -> None:
    """Over rounds, and where its node has a folder for its state also over a restart."""
    configs = [{"client": client, "state-dir": str(tmp_path / client)} for client in FEDERATION.ids]
    grid = InProcessGrid(client_app(MODEL, FEDERATION), node_configs=configs)
    given = TRAINING | QUICK | {"method": "fedavg", "rounds": 3, "min_nodes": 6, "timeout": 2.0, "secure_sums": True}
    made: set[bytes] = set()

    def restart(message: Any) -> Any:
        for context in grid.contexts.values():
            if "coterie" in context.state and KEPT not in context.state["coterie"]:
                made.add(as_bytes(open_array(context.state["coterie"][SIGNING_KEY])))
                context.state = RecordDict()
        return message

    grid.tamper = restart
    assert not [fault for record in run_on(grid, given).history for fault in record.faults]
    assert len(made) == 6
    file = next(path for path in tmp_path.rglob("*") if path.is_file())
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"sums-clients-file": "nowhere.json"}, "cannot be read"),
        ({"sums-key-file": "nowhere"}, "cannot be read"),
        ({"least-in-sum": 1}, "expected a whole number from 2 on"),
        ({"sums-uneven": 0.5}, "sums-uneven=0.5: expected a number from 1 on"),
        ({"sums-noise": -1}, "sums-noise=-1: expected a number from 0 on"),
    ],
)
def test_what_a_node_demands_is_checked(keys: dict[str, Path], setting: dict[str, Any], words: str) -> None:
    clients = keys[FEDERATION.ids[0]].parent / "clients.json"
    clients.write_text(json.dumps({client: public_key(key).read_text() for client, key in keys.items()}))
    configs = [{"client": client, "sums-clients-file": str(clients)} | setting for client in FEDERATION.ids]
    grid = InProcessGrid(client_app(MODEL, FEDERATION), node_configs=configs)
    with pytest.raises(RunError, match=words):
        run_on(grid, TRAINING | QUICK | {"method": "fedavg", "rounds": 1, "min_nodes": 6, "secure_sums": True})


@pytest.mark.parametrize("line", ["", "ssh-ed25519 AAAA", "ssh-rsa x", "6" * 40])
def test_what_is_no_public_key_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="is no public key of a client"):
        owner_from_line(line)
