"""Names, options, seeds and users' own networks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from coterie.errors import ConfigError
from coterie.models import build, list_models, reinitialise

NAMES = [
    "linear",
    "logistic",
    "mlp",
    "cnn-small",
    "cnn-cifar",
    "cnn-leaf",
    "cnn-flt",
    "cnn-1d",
    "autoencoder",
    "resnet18",
    "lstm",
]

USER_FILE = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Sizes:
    hidden: int = 3

class Both(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.head = nn.Linear(input_shape[0], classes)
    def forward(self, x):
        return self.head(x)

def only_classes(*, classes, hidden=Sizes().hidden):
    return nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, classes))

def nothing():
    return nn.Linear(2, 2)

def anything(**given):
    return nn.Linear(given["input_shape"][0], given["classes"])

def asks_more(classes, depth):
    return nn.Linear(depth, classes)

def positional(classes, /):
    return nn.Linear(2, classes)

def a_list(classes):
    return [classes]

number = 3
"""


def small(name: str) -> tuple[tuple[int, ...], int]:
    """An input shape and a number of classes that the named network takes."""
    if name == "linear":
        return (6,), 0
    if name == "cnn-1d":
        return (2, 16), 3
    return ((6,), 9) if name == "lstm" else ((1, 16, 16), 3)


def vector(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_the_list_has_every_network_with_a_line_for_each() -> None:
    assert [model.name for model in list_models()] == NAMES
    assert all(model.summary and "\n" not in model.summary for model in list_models())


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_repeats_and_another_differs_in_every_random_layer(name: str) -> None:
    first, again, other = (build(name, *small(name), seed=seed) for seed in (5, 5, 6))
    assert torch.equal(vector(first), vector(again))
    for (layer, a), b in zip(first.named_parameters(), other.parameters(), strict=True):
        starts_constant = "norm" in layer  # BatchNorm starts at ones and zeros
        assert torch.equal(a, b) == starts_constant, layer


def test_the_seed_decides_whatever_was_drawn_before_and_the_global_generator_is_left_alone() -> None:
    ready = nn.Linear(2, 2)
    first = vector(build("mlp", (4,), 2, seed=0))
    before = torch.get_rng_state()
    assert torch.equal(vector(build("mlp", (4,), 2, seed=0)), first)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(vector(build("mlp", (4,), 2, seed=0)), first)
    before = torch.get_rng_state()
    with pytest.raises(ConfigError):
        build("mlp:hidden=0", (4,), 2, seed=0)
    reinitialise(ready, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_options_reach_the_builder() -> None:
    model = build("cnn-cifar: width=4 , hidden=6", (3, 32, 32), 10, seed=0)
    assert model.get_submodule("conv1").out_channels == 4
    assert model.get_submodule("head").in_features == 6


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mpl", r"no model 'mpl'; did you mean 'mlp'\?"),
        ("mpl:hidden=3", r"no model 'mpl'; did you mean 'mlp'\?"),
        ("", r"no model ''; known: autoencoder, .*resnet18"),
        ("mlp:hiden=3", r"no option 'hiden'; did you mean 'hidden'\?"),
        ("mlp:classes=3", r"no option 'classes'"),
        ("resnet18:depth=3", r"no option 'depth'; did you mean 'width'"),
        ("mlp:", r"is not an option; write mlp:name=value"),
        ("mlp:hidden", r"'hidden' is not an option"),
        ("mlp:hidden=", r"is not an option"),
        ("mlp:hidden=3,hidden=4", r"'hidden' is given twice"),
        ("mlp:hidden=3.5", r"hidden=3.5 must be of type int"),
        ("mlp:hidden=True", r"hidden=True must be of type int"),
        ("mlp:hidden=wide", r"hidden=wide must be of type int"),
        ("autoencoder:output=3", r"output=3 must be of type str"),
        ("no_such_package.module:make", r"'no_such_package.module' cannot be imported"),
        (".relative:make", r"write package.module:callable"),
        ("no/such/file.py:make", r"there is no file no/such/file.py"),
        (":make", r"write package.module:callable"),
        ("torch.nn:", r"write package.module:callable"),
        ("torch.nn:Lineer", r"'Lineer' in torch.nn is not there; did you mean 'Linear'\?"),
    ],
)
def test_a_wrong_spec_is_one_line_that_says_what_to_do(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(spec, (1, 28, 28), 10, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("lstm", (6,), torch.float32), ("mlp", (6,), torch.int64), ("cnn-small", (1, 8, 8), torch.uint8)],
)
def test_inputs_of_the_wrong_kind_are_refused(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    build(name, shape, 9, seed=0)
    build(name, shape, 9, seed=0, dtype=torch.int64 if name == "lstm" else torch.float32)
    with pytest.raises(ConfigError, match=str(dtype)):
        build(name, shape, 9, seed=0, dtype=dtype)


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_networks.py"
    path.write_text(USER_FILE)
    return path


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("Both", [(3, 4), (3,)]),
        ("only_classes", [(3, 4), (3,), (3, 3), (3,)]),
        ("nothing", [(2, 2), (2,)]),
        ("anything", [(3, 4), (3,)]),
    ],
)
def test_a_users_file_gives_a_network_seeded_like_ours(
    user_file: Path, name: str, shapes: list[tuple[int, ...]]
) -> None:
    spec = f"{user_file}:{name}"
    first, again, other = (build(spec, (4,), 3, seed=seed) for seed in (1, 1, 2))
    assert [tuple(p.shape) for p in first.parameters()] == shapes
    assert torch.equal(vector(first), vector(again))
    assert not torch.equal(vector(first), vector(other))


def test_a_users_module_is_found_in_the_working_folder(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file.rename(user_file.with_name("coterie_test_networks.py"))
    monkeypatch.chdir(user_file.parent)
    path_before = list(sys.path)
    assert type(build("coterie_test_networks:Both", (4,), 3, seed=0)).__name__ == "Both"
    assert sys.path == path_before
    del sys.modules["coterie_test_networks"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("asks_more", r"asks for 'depth', but only input_shape and classes"),
        ("positional", r"asks for 'classes'.*by keyword"),
        ("a_list", r"returned a list; return a torch.nn.Module"),
        ("number", r"'number' in .* is not callable"),
        ("Bothh", r"is not there; did you mean 'Both'\?"),
    ],
)
def test_a_users_callable_that_does_not_fit_is_refused(user_file: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(f"{user_file}:{name}", (4,), 3, seed=0)


@pytest.mark.parametrize("text", ["def broken(:\n", "import no_such_package_at_all\n"])
def test_a_users_file_that_does_not_import_is_one_line(user_file: Path, text: str) -> None:
    user_file.write_text(text)
    with pytest.raises(ConfigError, match=r"cannot be imported \(.+\); correct the file") as caught:
        build(f"{user_file}:broken", (4,), 3, seed=0)
    assert "\n" not in str(caught.value)


def test_a_callable_itself_works_and_a_ready_module_is_pointed_elsewhere() -> None:
    def make(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(input_shape[0], classes)

    assert torch.equal(vector(build(make, (4,), 3, seed=1)), vector(build(make, (4,), 3, seed=1)))
    with pytest.raises(ConfigError, match="reinitialise"):
        build(nn.Linear(2, 2), (2,), 2, seed=0)


@pytest.mark.parametrize("name", ["mlp", "resnet18", "autoencoder", "lstm"])
def test_reinitialise_draws_a_copy_anew_and_leaves_the_original(name: str) -> None:
    model = build(name, *small(name), seed=0)
    original = vector(model).clone()
    first, again, other = (reinitialise(model, seed) for seed in (1, 1, 2))
    assert torch.equal(vector(model), original)
    assert torch.equal(vector(first), vector(again))
    assert not torch.equal(vector(first), vector(other))
    assert not torch.equal(vector(first), original)
    assert {p.data_ptr() for p in first.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())


def test_reinitialise_names_the_layer_it_cannot_draw() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(2))

        def forward(self, x: Any) -> Any:
            return self.factor * x

    with pytest.raises(ConfigError, match=r"layer '1' \(Scale\) cannot be initialised again"):
        reinitialise(nn.Sequential(nn.Linear(2, 2), Scale()), seed=0)
    with pytest.raises(ConfigError, match=r"the module itself \(Scale\)"):
        reinitialise(Scale(), seed=0)
