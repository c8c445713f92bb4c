"""The ready ClientApp: who it says it is, what it keeps, and what it refuses in words."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_trials import MODEL, digits
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import coterie.flower
from coterie.errors import ConfigError
from coterie.federation import Client, Federation
from coterie.flower import InProcessGrid, client_app
from coterie.flower.client import STATE, named_model
from coterie.flower.directory import Description, read_description
from coterie.flower.wire import Packer, layout_mark, open_array, open_reply
from coterie.parameters import Layout, span_size
from coterie.privacy import masked_layout
from coterie.runs.assemble import make_architecture
from coterie.tasks import ReplySchema, Task, Train
from coterie.tasks.wire import BadReply
from coterie.trainers.base import Training


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits(3)


def ask(app: ClientApp, context: Context, records: RecordDict, action: str = "coterie") -> RecordDict:
    reply = app(Message(records, context.node_id, f"query.{action}"), context)
    assert isinstance(reply.content, RecordDict)
    return reply.content


def node(app: ClientApp, run: dict[str, Any] | None = None, **config: Any) -> Context:
    """A node's context; the grid is there so that this process may make messages."""
    spelt = {key.replace("_", "-"): value for key, value in config.items()}
    return InProcessGrid(app, node_configs=[spelt], run_config=run).contexts[1001]


def described(app: ClientApp, context: Context) -> Description:
    return read_description(ask(app, context, RecordDict(), "describe"))


def refusal(app: ClientApp, context: Context, records: RecordDict | None = None, action: str = "describe") -> str:
    with pytest.raises(BadReply) as caught:
        read_description(ask(app, context, records or RecordDict(), action))
    return str(caught.value)


def packed(task: Task, layout: Layout, classes: int = 10, run: str = "r") -> RecordDict:
    return Packer({"classes": classes, "layout": layout_mark(layout), "run": run}, layout).pack(task)


def test_a_client_goes_by_its_configured_name_then_by_the_given_one_then_by_its_own(federation: Federation) -> None:
    own = federation.clients[0]
    unnamed, named = client_app(MODEL, own), client_app(MODEL, own, name="Oslo")
    assert described(unnamed, node(unnamed)).client == "client-0"
    assert described(named, node(named)).client == "Oslo"
    assert described(named, node(named, client="Rome")).client == "Rome"


def test_a_node_chooses_its_client_of_a_federation_by_name_or_by_place(federation: Federation) -> None:
    app = client_app(MODEL, federation)
    assert described(app, node(app, client="client-1")).client == "client-1"
    assert described(app, node(app, partition_id=2)).client == "client-2"
    assert "did you mean 'client-1'" in refusal(app, node(app, client="clent-1"))
    assert "0 to 2" in refusal(app, node(app, partition_id=3))
    assert "partition-id=None" in refusal(app, node(app))


def test_a_description_tells_the_kind_of_data_and_no_group_unless_the_trial_asks(federation: Federation) -> None:
    app = client_app(MODEL, lambda context: federation["client-1"])
    told = described(app, node(app))
    client = federation["client-1"]
    assert told.samples == {part: len(client.part(part)) for part in ("train", "validation", "test")}
    assert told.kind.shape == federation.input_shape
    assert told.classes <= 10
    assert told.group is None
    assert described(app, node(app, {"trial-groups": True})).group == client.group


def test_data_may_be_a_file_or_a_folder_named_in_the_node_config(tmp_path: Path) -> None:
    for name in ("Oslo", "Rome"):
        np.savez(tmp_path / f"{name}.npz", x=np.random.rand(20, 3).astype(np.float32), y=np.arange(20) % 4)
    app = client_app(MODEL)
    assert described(app, node(app, data=str(tmp_path / "Oslo.npz"))).client == "Oslo"
    told = described(app, node(app, data=str(tmp_path), client="Rome"))
    assert (told.client, told.classes, told.kind.shape) == ("Rome", 4, (3,))
    assert "whose file" in refusal(app, node(app, data=str(tmp_path)))
    assert "Bonn.npz" in refusal(app, node(app, data=str(tmp_path), client="Bonn"))
    assert "no data" in refusal(app, node(app))


def training(federation: Federation, private: bool = False) -> tuple[Task, Layout]:
    module = make_architecture(MODEL, federation)(3)
    layout = Layout.of(module)
    head = (layout.layers[-1],) if private else ()
    return Train(layout.read(module), Training(lr=0.1), 4, head), layout


def test_a_client_told_of_more_classes_than_it_has_builds_the_servers_model(federation: Federation) -> None:
    whole = federation.clients[0]
    few = Client(
        "few",
        *(type(whole.train)(s.x[s.y < 3], s.y[s.y < 3]) for s in map(whole.part, ("train", "validation", "test"))),
    )
    app = client_app(MODEL, few)
    context = node(app)
    assert described(app, context).classes == 3
    task, layout = training(federation)
    vector = open_reply(ask(app, context, packed(task, layout)), task.schema(layout)).vector
    assert vector is not None
    assert vector.norm() > 0
    assert "out of range" in refusal(app, context, packed(task, layout, classes=2), "coterie")


def test_another_model_than_the_servers_is_refused_in_words(federation: Federation) -> None:
    task, layout = training(federation)
    app = client_app("mlp:hidden=5", federation)
    assert "another model than the server" in refusal(
        app, node(app, client="client-0"), packed(task, layout), "coterie"
    )
    assert "no task" in refusal(app, node(app, client="client-0"), RecordDict({"task": ConfigRecord()}), "coterie")


def test_private_layers_stay_with_the_client_between_messages_and_are_not_sent(federation: Federation) -> None:
    app = client_app(MODEL, federation)
    context = node(app, client="client-0")
    task, layout = training(federation, private=True)
    spans = layout.select((layout.layers[-1],))
    heads = []
    for _ in range(2):
        answer = ask(app, context, packed(task, layout))
        assert answer["arrays"]["vector"].shape == (layout.size - span_size(spans),)
        vector = open_reply(answer, task.schema(layout)).vector
        assert vector is not None
        assert vector.any()
        assert all(not vector[span].any() for span in spans)
        record = context.state[STATE]
        assert isinstance(record, ArrayRecord)
        heads.append(open_array(record["private"]))
    assert not torch.equal(*heads)  # the second training began from the first one's head


def test_private_layers_outlive_a_restart_of_the_same_run_only_where_there_is_a_folder_for_them(
    federation: Federation, tmp_path: Path
) -> None:
    task, layout = training(federation, private=True)

    def head(run: str, folder: Path | None) -> torch.Tensor:
        app = client_app(MODEL, federation)  # a new process
        context = node(app, client="client-0", **({"state_dir": str(folder)} if folder else {}))
        ask(app, context, packed(task, layout, run=run))
        record = context.state[STATE]
        assert isinstance(record, ArrayRecord)
        return open_array(record["private"])

    first = head("run-1", tmp_path)
    assert not torch.equal(head("run-1", tmp_path), first)
    assert torch.equal(head("run-2", tmp_path), first)
    assert torch.equal(head("run-1", None), first)


def test_a_secret_is_needed_for_privacy_and_none_without(federation: Federation, tmp_path: Path) -> None:
    task, layout = training(federation)
    message = packed(task, layout)
    bare, sworn = client_app(MODEL, federation), client_app(MODEL, federation, secret="pomegranate")
    assert "no secret" in refusal(bare, node(bare, {"privacy": "permutation"}, client="client-0"), message, "coterie")
    assert "a secret" in refusal(sworn, node(sworn, {"privacy": "none"}, client="client-0"), message, "coterie")
    assert "privacy" in refusal(sworn, node(sworn, client="client-0"), message, "coterie")  # the server expects layers
    missing = node(bare, client="client-0", secret_file=str(tmp_path / "none"))
    assert "cannot be read" in refusal(bare, missing, message, "coterie")


def test_the_initial_model_under_privacy_depends_on_the_secret_so_that_the_server_cannot_draw_it(
    federation: Federation, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("pomegranate\n")
    plain = make_architecture(MODEL, federation)
    layout = Layout.of(plain(0))
    header = {"classes": 10, "layout": layout_mark(masked_layout(layout)), "seed": "7"}
    drawn = []
    for app, config in (
        (client_app(MODEL, federation, secret="pomegranate"), {"client": "client-0"}),
        (client_app(MODEL, federation), {"client": "client-1", "secret_file": str(tmp_path / "secret")}),
        (client_app(MODEL, federation, secret="quince"), {"client": "client-2"}),
    ):
        context = node(app, {"privacy": "permutation"}, **config)
        answer = ask(app, context, RecordDict({"task": ConfigRecord(header)}), "initial")
        drawn.append(open_reply(answer, ReplySchema(layout.size)).vector)
    assert torch.equal(drawn[0], drawn[1])  # type: ignore[arg-type]
    assert not torch.equal(drawn[0].sort()[0], drawn[2].sort()[0])  # type: ignore[union-attr]
    assert not torch.equal(drawn[0].sort()[0], layout.read(plain(7)).sort()[0])  # type: ignore[union-attr]


def test_without_flower_the_import_names_the_extra_and_nothing_else_needs_flower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "flwr" else found(name, *a))
    with pytest.raises(ConfigError, match=r'pip install "coterie\[flower\]"'):
        importlib.reload(coterie.flower)
    package = Path(coterie.__file__).parent
    for file in package.rglob("*.py"):
        if package / "flower" not in file.parents:
            outermost = [
                node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            names = [getattr(node, "module", None) or node.names[0].name for node in outermost]
            assert not [name for name in names if name.startswith(("flwr", "coterie.flower"))], file


def test_telemetry_and_the_look_for_updates_are_off() -> None:
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_an_unknown_precision_is_named(federation: Federation) -> None:
    task, layout = training(federation)
    app = client_app(MODEL, federation)
    context = node(app, {"precision": "float33"}, client="client-0")
    assert "float32" in refusal(app, context, packed(task, layout), "coterie")
    with pytest.raises(ConfigError, match="unknown scenario"):
        named_model({"scenario": "nowhere"})
