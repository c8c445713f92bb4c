"""Options of methods: checked when a method is made, whoever wrote it, and described in plain words."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from coterie.errors import ConfigError
from coterie.methods import (
    IFCA,
    FedAvg,
    FedProx,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    make_method,
    method,
    method_classes,
    saved,
)
from coterie.methods import base as registry
from coterie.methods.splitting import BenefitRule
from coterie.option_types import describe_options, placeholder, type_in_words
from printed import install


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that a test defines are forgotten after it."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))


def test_clusters_is_another_word_for_the_k_of_a_method() -> None:
    assert make_method("ifca:clusters=3") == make_method("ifca:k=3")
    assert make_method("flt:clusters=3") != make_method("flt:k=3")
    with pytest.raises(ConfigError, match="no option 'clusters'"):
        make_method("ifca:k=2,clusters=3")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IFCA(k=0), "method 'ifca', option k=0: expected whole number from 1 or auto"),
        (lambda: IFCA(k=True), "option k=True: expected whole number from 1 or auto"),
        (lambda: IFCA(kk=3), "method 'ifca' has no option 'kk': did you mean 'k'"),
        (lambda: FedAvg("samples", "fast"), "option server_lr='fast': expected number above 0"),
        (lambda: FedAvg(server_lr=float("inf")), "option server_lr=inf: expected number above 0"),
        (lambda: FedAvg(server_lr=float("nan")), "option server_lr=nan: expected number above 0"),
        (lambda: FedProx(mu=-1), "method 'fedprox', option mu=-1: expected number from 0"),
        (lambda: FedProx(weighting="size"), "option weighting='size': expected one of samples, uniform"),
        (lambda: BenefitRule(level=1.0), "option level=1.0: expected number above 0 and below 1"),
    ],
)
def test_a_bad_option_is_one_line_in_python_too(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_decorated_class_is_a_frozen_dataclass() -> None:
    @method("nearest")
    class Nearest:
        """Takes the nearest."""

        k: PositiveInt = 2
        """How many."""

    made: Any = make_method("nearest:k=3")
    assert made == Nearest(3) == Nearest(k=3)
    assert dataclasses.replace(made, k=4) == Nearest(4)
    assert hash(made) == hash(Nearest(3))
    assert repr(made).endswith("Nearest(k=3)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.k = 5
    assert pickle.loads(pickle.dumps(FedProx(mu=0.5))) == FedProx(mu=0.5)


def test_an_option_without_a_default_must_be_given() -> None:
    @method("needy")
    class Needy:
        k: PositiveInt

    assert Needy(3).k == 3
    with pytest.raises(ConfigError, match="method 'needy', option k is missing: expected whole number from 1"):
        make_method("needy")
    assert describe_options(Needy)[0].default == "(needed)"


def test_a_name_is_used_once() -> None:
    with pytest.raises(
        ConfigError, match=r"method 'fedavg' of .*Other: coterie\.methods\.fedavg\.FedAvg has this name"
    ):

        @method("fedavg")
        class Other:
            pass


def test_saved_makes_a_frozen_dataclass_and_leaves_one_as_it_is() -> None:
    @saved
    class State:
        models: list[int]

    with pytest.raises(dataclasses.FrozenInstanceError):
        State([1]).models = []  # type: ignore[misc]

    @saved
    @dataclasses.dataclass
    class Own:
        cluster_of: dict[str, int] = dataclasses.field(default_factory=dict)

    own = Own()
    own.cluster_of = {"ann": 1}
    assert own.cluster_of == {"ann": 1}


@pytest.mark.parametrize(
    ("annotation", "words", "shown"),
    [
        (PositiveInt, "whole number from 1", "INTEGER"),
        (NonNegativeInt | None, "whole number from 0 or none", "INTEGER"),
        (Annotated[int, Field(gt=2, lt=9)], "whole number from 3 to 8", "INTEGER"),
        (Annotated[float, Field(gt=0, le=1)], "number above 0 and up to 1", "NUMBER"),
        (PositiveFloat | Literal["auto"], "number above 0 or auto", "[NUMBER|auto]"),
        (Literal["conflict", "gain"], "one of conflict, gain", "[conflict|gain]"),
        (str | tuple[str, ...], "text or (text, …)", "TEXT"),
        (bool, "true or false", "TEXT"),
        (Path, "Path", "TEXT"),
    ],
)
def test_types_in_plain_words(annotation: Any, words: str, shown: str) -> None:
    assert type_in_words(annotation) == words
    assert placeholder(annotation) == shown


def test_every_option_of_ours_has_a_sentence_and_a_type_in_words() -> None:
    for name, cls in method_classes().items():
        for option in describe_options(cls):
            assert option.text.endswith("."), (name, option.name)
            assert not set("[]") & set(option.type), (name, option.name)


UNDECORATED = '''
from dataclasses import dataclass

@dataclass(frozen=True)
class Still:
    """Does nothing at all."""

    k: int = 2
    """How often."""

    def __post_init__(self):
        if self.k < 1:
            raise ValueError("k must be positive")
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("stillness", "renamed"):
        sys.modules.pop(name, None)


def test_a_class_without_the_decorator_works_as_far_as_it_goes(site: Path) -> None:
    install(site, "stillness", UNDECORATED, "[coterie.methods]\nstill = stillness:Still\n")
    importlib.invalidate_caches()
    assert make_method("still:k=3").k == 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="method 'still': k must be positive"):
        make_method("still:k=0")
    with pytest.raises(ConfigError, match="method 'still' has no option 'j'"):
        make_method("still:j=0")
    assert describe_options(method_classes()["still"]) == [("k", "whole number", "2", "How often.")]


def test_an_entry_point_of_another_name_is_refused(site: Path) -> None:
    code = "from coterie.methods import method\n@method('one')\nclass M:\n    pass\n"
    install(site, "renamed", code, "[coterie.methods]\ntwo = renamed:M\n")
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match="method 'two' of the package 'renamed' calls itself 'one': use one name"):
        make_method("two")
