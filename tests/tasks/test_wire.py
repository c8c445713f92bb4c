"""Tasks as plain values and tensors: what is left out is put back, bytes are those of the tensors, bad values fail."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor, nn

from coterie import plugins
from coterie.errors import ConfigError
from coterie.parameters import Layout, gather, span_size
from coterie.privacy.projection import Compare, CompareHalves
from coterie.privacy.secure_tasks import Agree, CheckShares, Masked, OfferKeys, Reveal, ShareSecrets
from coterie.tasks import (
    Array,
    Choose,
    Collect,
    CountChoice,
    Divergence,
    Embed,
    Evaluate,
    FeatureMoments,
    Gradient,
    HalfUpdates,
    HeldOut,
    InputMoments,
    LayerUpdate,
    Noise,
    Number,
    Personalise,
    Reply,
    ReplySchema,
    ScoreHidden,
    Sent,
    ServeBy,
    StagedTraining,
    Task,
    Train,
    TrainHidden,
    TryToServe,
    WordSums,
)
from coterie.tasks.wire import BadReply, check_values, decode, encode, find_task, reply_bytes, same_form, task_bytes
from coterie.trainers.base import Training
from coterie_field.mixture_tasks import MixtureTraining, MixtureWeights
from coterie_field.soft_tasks import ImportanceWeights, SoftTraining
from coterie_field.subspaces import Subspaces

LAYOUT = Layout.of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)))
HEAD, BODY = 3 * 2 + 2, 4 * 3 + 3 + 3 + 3 + (3 + 3 + 1)
"""Numbers in the last layer, and in all others with the buffers of BatchNorm."""
HOW = Training(
    lr=0.3,
    steps=2,
    batch_size=None,
    layers=("0", "3"),
    optimizer="adamw",
    betas=(0.8, 0.95),
    clip_gradient=0.5,
    class_weights=(1.0, 2.0),
    augment="flip",
)
SHARED = tuple((span.start, span.stop) for span in LAYOUT.complement(LAYOUT.select("3")))
SEED = 2**62 + 1


def draw(seed: int) -> Tensor:
    return torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed % 2**31))


INITIAL = draw(SEED)
LEARNED = INITIAL.clone()
for _span in LAYOUT.complement(LAYOUT.select("3")):
    LEARNED[_span] += 1  # the head is still as it was drawn
MODELS = torch.stack([INITIAL, INITIAL, INITIAL])
MODELS[:, LAYOUT.select("3")[0]] = torch.randn(3, HEAD)

CASES: dict[str, tuple[Task, dict[str, int], set[str]]] = {
    "train": (Train(LEARNED, HOW, 3), {"model": HEAD + BODY}, set()),
    "train, nothing private": (Train(LEARNED, HOW, 3, init=SEED), {"model": HEAD + BODY}, set()),
    "train, private head": (Train(LEARNED, HOW, 3, ("3",), SEED), {"model": BODY}, {"model"}),
    "train, no seed": (Train(LEARNED, HOW, 3, ("3",)), {"model": HEAD + BODY}, set()),
    "train, all private": (Train(INITIAL, HOW, 3, LAYOUT.names, init=SEED), {}, {"model"}),
    "train, personal": (Train(LEARNED, HOW, 3, personal=HOW), {"model": HEAD + BODY}, set()),
    "collect": (Collect(INITIAL, LAYOUT.names, SEED), {}, {"model"}),
    "collect, head": (Collect(LEARNED, ("3",), SEED), {"model": BODY}, {"model"}),
    "evaluate": (Evaluate(MODELS, "validation", ("3",)), {"models": 3 * (HEAD + BODY)}, set()),
    "evaluate, a mixture": (
        Evaluate(MODELS, metrics=("f1",), weights=(0.5, 0.25, 0.25)),
        {"models": 3 * (HEAD + BODY)},
        set(),
    ),
    "mixture": (
        MixtureTraining(MODELS, torch.ones(3) / 3, HOW, 3),
        {"models": 3 * (HEAD + BODY), "weights": 3},
        set(),
    ),
    "mixture, labels": (
        MixtureTraining(MODELS, torch.ones(3) / 3, HOW, 3, torch.rand(3, 4)),
        {"models": 3 * (HEAD + BODY), "weights": 3, "labels": 12},
        set(),
    ),
    "mixture weights": (MixtureWeights(MODELS, 20), {"models": 3 * (HEAD + BODY)}, set()),
    "importance": (ImportanceWeights(MODELS, 0.5), {"models": 3 * (HEAD + BODY)}, set()),
    "soft": (SoftTraining(INITIAL, MODELS, None, 0.5, HOW, 3, SEED), {"centres": 3 * (HEAD + BODY)}, {"start"}),
    "soft, weights known": (
        SoftTraining(INITIAL, LEARNED[None], torch.ones(1), 0.5, HOW, 3, SEED),
        {"centres": HEAD + BODY, "weights": 1},
        {"start"},
    ),
    "gradient": (Gradient(LEARNED), {"model": HEAD + BODY}, set()),
    "noise": (Noise(LEARNED, HOW, 4), {"model": HEAD + BODY}, set()),
    "half updates": (HalfUpdates(LEARNED, HOW, 4, 5), {"model": HEAD + BODY}, set()),
    "held out": (HeldOut(LEARNED.repeat(2, 2, 1), 5), {"models": 4 * (HEAD + BODY)}, set()),
    "compare": (Compare(LEARNED, HOW, 4, 8), {"model": HEAD + BODY}, set()),
    "compare halves": (CompareHalves(LEARNED, HOW, 4, 5, 8), {"model": HEAD + BODY}, set()),
    "secure sum, keys": (OfferKeys("run/1", 2), {}, set()),
    "secure sum, shares": (
        ShareSecrets("run/1", ("ab", "cd"), (1, 2), torch.randn(2, 160), (1.0, 0.5), 2, 2, 1.0, (0.5, 1.0)),
        {"keys": 320},
        set(),
    ),
    "secure sum, check": (
        CheckShares((2,), torch.randn(1, 112), torch.randn(1, 32)),
        {"boxes": 112, "commitments": 32},
        set(),
    ),
    "secure sum, training": (
        Masked(Train(LEARNED, HOW, 3, ("3",), SEED), (2,), torch.randn(1, 32)),
        {"task.model": BODY, "confirmed": 32},
        {"task.model"},
    ),
    "secure sum, agreement": (Agree((1, 2)), {}, set()),
    "secure sum, reveal": (Reveal((1, 2), (1,), torch.randn(1, 32), 3), {"signatures": 32}, set()),
    "choose": (Choose(MODELS, None, 5), {"models": 3 * (HEAD + BODY)}, set()),
    "choose, shared body": (Choose(MODELS, HOW, 5, SHARED), {"models": BODY + 3 * HEAD}, set()),
    "hidden choice, count": (CountChoice(MODELS, "choice 0"), {"models": 3 * (HEAD + BODY)}, set()),
    "hidden choice, training": (TrainHidden(MODELS, HOW, 5, "choice 0", (0, 2)), {"models": 3 * (HEAD + BODY)}, set()),
    "hidden choice, scores": (ScoreHidden(MODELS, "choice 0", "test"), {"models": 3 * (HEAD + BODY)}, set()),
    "layer update": (LayerUpdate(INITIAL, HOW, 6, ("1", "3"), SEED), {}, {"model"}),
    "layer update, halves": (LayerUpdate(LEARNED, HOW, 6, "last", None, 3), {"model": HEAD + BODY}, set()),
    "layer update, no seed": (LayerUpdate(LEARNED, HOW, 6), {"model": HEAD + BODY}, set()),
    "divergence": (
        Divergence(LayerUpdate(INITIAL, HOW, 6, ("3",), SEED), torch.randn(HEAD)),
        {"mean": HEAD},
        {"task.model"},
    ),
    "staged": (
        StagedTraining(LEARNED, torch.randn(2, 3), ("1.bias",), HOW, 7, ("3",), SEED),
        {"model": BODY, "specific": 6},
        {"model"},
    ),
    "staged, last cluster": (
        StagedTraining(LEARNED, torch.randn(0, HEAD), ("3",), HOW, 7),
        {"model": HEAD + BODY, "specific": 0},
        set(),
    ),
    "embed": (Embed("pca", (2, 2), 3, torch.randn(16), 5, 0, 8), {"weights": 16}, set()),
    "embed, noise": (Embed("pca", (2, 2), 3, torch.randn(16), 5, 0, 8, noise=0.5), {"weights": 16}, set()),
    "embed, words": (
        Embed("pca", (2, 2), 3, torch.randn(16), 5, 0, 8, 5, torch.randn(4, 3)),
        {"weights": 16, "words": 12},
        set(),
    ),
    "word sums": (WordSums("pca", (2, 2), 3, torch.randn(16), torch.randn(4, 3)), {"weights": 16, "words": 12}, set()),
    "subspaces": (Subspaces(3, False), {}, set()),
    "input moments": (InputMoments(), {}, set()),
    "feature moments": (
        FeatureMoments(torch.zeros(5), torch.ones(5), 4, False, 3, 3, 1, 2),
        {"mean": 5, "scale": 5},
        set(),
    ),
    "try to serve": (TryToServe(LEARNED.repeat(2, 1), HOW, 7), {"models": 2 * (HEAD + BODY)}, set()),
    "try to serve, further": (TryToServe(LEARNED.repeat(0, 1), HOW, 7), {"models": 0}, set()),
    "serve by": (ServeBy(1), {}, set()),
    "personalise": (Personalise(LEARNED, HOW, 9, ("3",)), {"model": HEAD + BODY}, set()),
}
"""A task, how many numbers of each tensor are sent, and which tensors are drawn by the client, in whole or in part."""

case = pytest.mark.parametrize(("task", "sent", "drawn"), CASES.values(), ids=list(CASES))


def received(task: Task) -> Task:
    """The task after a journey on which plain fields are JSON and tensors are copied."""
    encoded = encode(task, LAYOUT)
    plain = json.loads(json.dumps(encoded.fields)) | {
        "drawn": {name: seed for name, (seed, _) in encoded.drawn.items()}
    }
    tensors = {name: part.value(LAYOUT).clone() for name, part in encoded.tensors.items()}
    return decode(task.kind(), plain, tensors, LAYOUT, draw)


def test_the_layout_is_as_the_cases_say() -> None:
    assert LAYOUT.size == HEAD + BODY
    assert span_size(LAYOUT.select("3")) == HEAD
    assert len(LAYOUT.complement(LAYOUT.select("3"))) == 2  # buffers stand behind the head


def test_every_task_of_the_package_is_a_case() -> None:
    ours = {kind for name, kind in Task.kinds.items() if name.startswith(("coterie.", "coterie_field."))}
    assert {type(task) for task, _, _ in CASES.values()} == ours


@case
def test_a_task_arrives_as_it_was_sent(task: Task, sent: dict[str, int], drawn: set[str]) -> None:
    assert_same(task, received(task))


def assert_same(task: Task, back: Task) -> None:
    assert type(back) is type(task)
    for entry in fields(task):  # type: ignore[arg-type]
        before, after = getattr(task, entry.name), getattr(back, entry.name)
        if isinstance(before, Tensor):
            assert torch.equal(before, after)
        elif isinstance(before, Task):
            assert_same(before, after)
        else:
            assert before == after
            assert type(before) is type(after)


@case
def test_only_what_the_client_lacks_is_sent(task: Task, sent: dict[str, int], drawn: set[str]) -> None:
    encoded = encode(task, LAYOUT)
    assert {name: part.value(LAYOUT).numel() for name, part in encoded.tensors.items()} == sent
    assert {name: part.numel for name, part in encoded.tensors.items()} == sent
    assert {name: seed for name, (seed, _) in encoded.drawn.items()} == dict.fromkeys(drawn, SEED)


@case
def test_bytes_are_those_of_the_tensors_and_the_seeds(task: Task, sent: dict[str, int], drawn: set[str]) -> None:
    encoded = encode(task, LAYOUT)
    tensors = sum(part.value(LAYOUT).float().numpy().nbytes for part in encoded.tensors.values())
    assert task_bytes(task, LAYOUT) == tensors + 8 * len(encoded.drawn) == 4 * sum(sent.values()) + 8 * len(drawn)


def test_private_layers_are_drawn_again_whatever_the_server_holds_in_their_place() -> None:
    other = LEARNED.clone()
    (head,) = LAYOUT.select("3")
    other[head] = 99.0
    back = received(Train(other, HOW, 3, ("3",), init=SEED))
    assert isinstance(back, Train)
    assert torch.equal(back.model, LEARNED)


def test_shared_layers_are_sent_once_and_stand_in_every_row() -> None:
    part = encode(Choose(MODELS, HOW, 5, SHARED), LAYOUT).tensors["models"]
    flat = part.value(LAYOUT)
    assert torch.equal(flat[:BODY], gather(MODELS[0], part.once))
    assert torch.equal(flat[BODY:].view(3, HEAD), MODELS[:, LAYOUT.select("3")[0]])


def test_tensors_are_the_same_where_the_same_numbers_are_sent() -> None:
    def key(task: Task, name: str = "model") -> Any:
        return encode(task, LAYOUT).tensors[name].key()

    rows = torch.stack([LEARNED, INITIAL])
    assert key(Train(rows[0], HOW, 1)) == key(Gradient(rows[0])) == key(Noise(rows[:1].view(-1), HOW, 2))
    assert key(Train(rows[0], HOW, 1)) != key(Train(rows[1], HOW, 1))
    assert key(Train(rows[0], HOW, 1)) != key(Train(rows[0], HOW, 1, ("3",), init=SEED))
    assert key(Choose(MODELS, HOW, 5, SHARED), "models") != key(Choose(MODELS, HOW, 5), "models")


@pytest.mark.parametrize(
    ("fields", "tensors"),
    [
        ({"surprise": 1}, {}),
        ({"training": {"training": {"lr": 0.1, "pace": 3}}}, {}),
        ({"training": {"lr": 0.1}}, {}),
        ({"private": 3}, {}),
        ({"drawn": {"model": "many"}}, {}),
        ({"model": 1}, {}),
        ({}, {"model": None}),
        ({"drawn": {}}, {"model": None}),
        ({}, {"model": torch.ones(BODY - 1)}),
        ({}, {"model": torch.ones(2, BODY)}),
    ],
)
def test_what_is_no_task_is_refused(fields: dict[str, Any], tensors: dict[str, Tensor | None]) -> None:
    encoded = encode(Train(LEARNED, HOW, 3, ("3",), init=SEED), LAYOUT)
    plain: dict[str, Any] = encoded.fields | {"drawn": {"model": SEED}}
    sent = {"model": encoded.tensors["model"].value(LAYOUT)}
    assert isinstance(decode(Train.kind(), plain, sent, LAYOUT, draw), Train)
    given = {name: tensor for name, tensor in (sent | tensors).items() if tensor is not None}
    with pytest.raises(ConfigError, match=r"no task \(.+\): use the same version"):
        decode(Train.kind(), plain | fields, given, LAYOUT, draw)


def test_a_layer_that_the_client_does_not_have_is_named() -> None:
    encoded = encode(Train(LEARNED, HOW, 3, ("3",), init=SEED), LAYOUT)
    plain: dict[str, Any] = encoded.fields | {"drawn": {"model": SEED}, "private": ["3", "4"]}
    with pytest.raises(ConfigError, match="no layer '4'"):
        decode(Train.kind(), plain, {"model": encoded.tensors["model"].value(LAYOUT)}, LAYOUT, draw)


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(ConfigError, match=r"knows no task 'elsewhere\.Dig': install the package that defines it"):
        decode("elsewhere.Dig", {}, {}, LAYOUT, draw)


@dataclass
class Point:
    """An entry point of a package, which defines a task or fails when it is loaded."""

    name: str
    module: str
    loaded: list[str]
    defines: str = ""
    dist: None = None

    @property
    def value(self) -> str:
        return f"{self.module}:{self.name}"

    def load(self) -> None:
        self.loaded.append(self.name)
        if not self.defines:
            raise ZeroDivisionError("broken")
        schema = {"schema": lambda self, layout: ReplySchema(), "__module__": self.module}
        type(self.defines, (Task,), schema)


def test_a_task_of_a_package_that_offers_methods_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    points = [Point("a", "broken", loaded), Point("b", "other", loaded, "Dig"), Point("c", "garden.bed", loaded, "Dig")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == "coterie.methods" else [])
    monkeypatch.setattr(Task, "kinds", dict(Task.kinds))
    assert find_task(Train.kind()) is Train
    assert loaded == []  # what is known needs no import
    assert find_task("garden.bed.Dig").__module__ == "garden.bed"
    assert loaded == ["c"]  # the package that the name begins with comes first
    with pytest.raises(ConfigError, match=r"no task 'nowhere\.Dig': .*'a': broken:a .* \(ZeroDivisionError: broken\)"):
        find_task("nowhere.Dig")
    assert find_task("other.Dig").__module__ == "other"


@dataclass(frozen=True)
class Carry(Task):
    """A task with a field of any kind."""

    load: Any = None
    tensor: Annotated[Tensor, "no mark of ours"] = field(default_factory=lambda: torch.zeros(2, 3))

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema()


@pytest.mark.parametrize("load", [None, True, 3, 0.5, "text", (), (1, ("a", None), 2.5), HOW, (HOW, HOW), math.inf])
def test_plain_values_arrive_as_they_were(load: Any) -> None:
    back = received(Carry(load))
    assert isinstance(back, Carry)
    assert back.load == load
    assert type(back.load) is type(load)
    assert torch.equal(back.tensor, torch.zeros(2, 3))


@pytest.mark.parametrize("load", [{"a": 1}, {1, 2}, object(), 1j, b"bytes", (1, {"a": 1}), print])
def test_a_field_that_cannot_be_sent_is_named_by_its_type(load: Any) -> None:
    inner = load[1] if isinstance(load, tuple) else load
    with pytest.raises(ConfigError, match=f"cannot send {type(inner).__name__}: expected numbers, text, tuples"):
        encode(Carry(load), LAYOUT)


def test_a_task_that_is_no_dataclass_says_how_to_make_it_one() -> None:
    class Bare(Carry):
        pass

    class Bald(Task):
        def schema(self, layout: Layout) -> ReplySchema:
            return ReplySchema()

    assert encode(Bare(4), LAYOUT).fields == {"load": 4}
    for use in (encode, task_bytes):
        with pytest.raises(ConfigError, match=r"Bald is no dataclass: write @dataclass\(frozen=True\)"):
            use(Bald(), LAYOUT)  # type: ignore[operator]


def test_a_mark_of_a_field_counts_in_a_task_of_another_package() -> None:
    @dataclass(frozen=True)
    class Own(Task):
        table: Annotated[Tensor, Sent(drawn="init")]
        init: int | None

        def schema(self, layout: Layout) -> ReplySchema:
            return ReplySchema()

    task = Own(INITIAL, SEED)
    assert task_bytes(task, LAYOUT) == 8
    assert task_bytes(replace(task, init=None), LAYOUT) == 4 * LAYOUT.size


def test_tasks_that_differ_in_their_seeds_alone_have_one_form():
    task = Train(LEARNED, HOW, 3, ("3",), init=SEED)
    again = replace(task, seed=4)
    assert same_form(task, task)
    assert same_form(task, again)
    assert task_bytes(task, LAYOUT) == task_bytes(again, LAYOUT)
    assert task.schema(LAYOUT) == again.schema(LAYOUT)
    for other in (replace(task, private=()), replace(task, model=LEARNED.clone()), replace(task, personal=HOW), None):
        assert not same_form(task, other)
    assert not same_form(task, Evaluate(LEARNED[None]))


def test_bytes_of_a_reply_are_its_vector_its_arrays_and_eight_for_a_number() -> None:
    schema = ReplySchema(10, {"a": Number(), "b": Array((3,)), "c": Array((4, 2), at_most=True)})
    values = {"a": 1.0, "b": [1.0, 2.0, 3.0], "c": torch.ones(2, 2)}
    whole = Reply("x", 5, torch.ones(10), values | {"norm": 3.0})
    assert reply_bytes(whole, schema) == 4 * 10 + 8 + 4 * 3 + 4 * 4
    assert reply_bytes(replace(whole, vector=None), schema) == reply_bytes(whole, schema)  # added up on the way
    assert reply_bytes(whole, replace(schema, choices=2)) == reply_bytes(whole, schema) + 8
    assert reply_bytes(whole, replace(schema, private=(slice(0, 2), slice(7, 10)))) == reply_bytes(whole, schema) - 20
    assert reply_bytes(Reply("x", 5), ReplySchema()) == 0


NAN = math.nan
BETWEEN = Number(minimum=-1, maximum=2)
ROWS = Array((3, 2), minimum=0, maximum=1, at_most=True)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (Number(), 1e300, None),
        (Number(), 3, None),
        (Number(), NAN, "its some value is not finite: lower the learning rate"),
        (Number(), math.inf, "its some value is not finite"),
        (Number(), True, "no number as some_value"),
        (Number(), "1", "no number as some_value"),
        (Number(), None, "no number as some_value"),
        (Number(), [1.0], "no number as some_value"),
        (Number(), torch.tensor(1.0), "no number as some_value"),
        (Number(finite=False), -math.inf, None),
        (Number(finite=False), NAN, "it sent nan as some_value"),
        (BETWEEN, -1, None),
        (BETWEEN, 2.0, None),
        (BETWEEN, 2.001, "it sent 2.001 as some_value, expected -1 to 2"),
        (BETWEEN, -1.5, "it sent -1.5 as some_value, expected -1 to 2"),
        (Number(integer=True), 4, None),
        (Number(integer=True), 4.0, "it sent 4.0 as some_value, expected a whole number"),
        (Array((2,)), [1.0, 2.0], None),
        (Array((2,)), torch.ones(2), None),
        (Array((2,)), [1.0], r"it sent some_value of shape \(1,\), expected \(2,\)"),
        (Array((2,)), [1.0, 2.0, 3.0], r"of shape \(3,\)"),
        (Array((2,)), torch.ones(1, 2), r"of shape \(1, 2\)"),
        (Array((2,)), 1.0, r"of shape \(\)"),
        (Array((2,)), [1.0, NAN], "its some value is not finite"),
        (Array((2,)), [1.0, math.inf], "its some value is not finite"),
        (Array((2,), finite=False), [NAN, -math.inf], None),
        (Array((2,), minimum=0, maximum=1, finite=False), [NAN, NAN], None),
        (Array((2,), minimum=0, maximum=1, finite=False), [NAN, 1.5], "some_value outside 0 to 1"),
        (Array((2,), minimum=0, maximum=1, finite=False), [math.inf, 0], "some_value outside 0 to 1"),
        (Array((2,), minimum=0, maximum=1), [0, 1], None),
        (Array((2,), minimum=0, maximum=1), [-0.1, 1], "some_value outside 0 to 1"),
        (Array((3, 2)), torch.ones(2, 2), r"of shape \(2, 2\), expected \(3, 2\)"),
        (Array((None, 2)), torch.ones(1000, 2), None),
        (Array((None, 2)), torch.ones(0, 2), r"of shape \(0, 2\), expected \(None, 2\)"),
        (Array((None, 2)), torch.ones(5, 3), r"of shape \(5, 3\)"),
        (Array((None,), minimum=0), [0.0] * 7 + [-1.0], "some_value outside 0 to inf"),
        (ROWS, torch.ones(3, 2), None),
        (ROWS, torch.ones(1, 2), None),
        (ROWS, torch.ones(0, 2), r"of shape \(0, 2\)"),
        (ROWS, torch.ones(4, 2), r"of shape \(4, 2\)"),
        (ROWS, torch.ones(3, 1), r"of shape \(3, 1\)"),
        (ROWS, torch.full((2, 2), 2.0), "outside 0 to 1"),
    ],
)
def test_values_are_checked_against_the_schema(kind: Number | Array, value: Any, reason: str | None) -> None:
    schema = ReplySchema(values={"some_value": kind})
    if reason is None:
        check_values({"some_value": value}, schema)
    else:
        with pytest.raises(BadReply, match=reason):
            check_values({"some_value": value}, schema)


def test_values_more_or_less_than_the_schema_names_are_refused() -> None:
    schema = ReplySchema(values={"a": Number(), "b": Number()})
    check_values({"a": 1.0, "b": 2.0}, schema)
    with pytest.raises(BadReply, match="it sent values a, expected a, b"):
        check_values({"a": 1.0}, schema)
    with pytest.raises(BadReply, match="it sent values a, b, c, expected a, b"):
        check_values({"a": 1.0, "b": 1.0, "c": 1.0}, schema)
    with pytest.raises(BadReply, match="it sent values none"):
        check_values({}, schema)


@pytest.mark.parametrize(
    ("kind", "sound", "unsound"),
    [
        (Array((2, 3)), [(2, 3)], [(3, 2), (2,), (2, 3, 1), (1, 3), (0, 3)]),
        (Array((2, None)), [(2, 1), (2, 50)], [(2, 0), (1, 5), (2,)]),
        (Array((2, None), at_most=True), [(1, 7), (2, 7)], [(3, 7), (0, 7), (2, 0)]),
        (Array((None,)), [(1,), (9,)], [(0,), (1, 1)]),
        (Array((0,)), [(0,)], [(1,)]),
    ],
)
def test_shapes_that_an_array_may_have(
    kind: Array, sound: list[tuple[int, ...]], unsound: list[tuple[int, ...]]
) -> None:
    assert all(kind.fits(shape) for shape in sound)
    assert not any(kind.fits(shape) for shape in unsound)
