"""The method and the rule that docs/extending.md prints, installed as packages: on every engine, protected, resumed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.data import find_scenario
from coterie.errors import ConfigError
from coterie.flower import InProcessGrid, client_app
from coterie.flower.server import run_on
from coterie.methods import base, make_method
from coterie.methods.splitting import RULES, make_rule
from printed import blocks, entry_points_in, install

METHOD, RULE = blocks("extending.md")[1:]
FEDERATION = find_scenario("digits-permuted").build(clients=6, groups=2, samples=40, seed=3)
OPTIONS: dict[str, Any] = {"model": "mlp:hidden=16", "rounds": 3, "seed": 5, "lr": 0.1, "epochs": 1}
RULED = "cfl:rule=opposed(above=0.2),fallback=false"
ON_GRID = {"timeout": 0.25, "wait": 2.0, "poll": 0.02}


@pytest.fixture(autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The two printed packages, installed; afterwards nothing knows them."""
    site, toml = tmp_path_factory.mktemp("site"), entry_points_in(blocks("extending.md", "toml")[1])
    install(site, "screen", METHOD, toml)
    (site / "opposed.py").write_text(RULE)
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in ("screen", "opposed"):
        sys.modules.pop(name, None)
    base._METHODS.pop("screen", None)
    RULES.pop("opposed", None)


def lines(code: str) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for line in code.splitlines())


def here(method: str, **options: Any) -> coterie.Result:
    """The run on this machine."""
    return coterie.run(method, FEDERATION, **OPTIONS | {"workers": 1} | options)


def on_grid(method: str, **options: Any) -> coterie.Result:
    """The run over Flower messages, in this process, with one node for each client."""
    nodes = [{"client": client} for client in FEDERATION.ids]
    grid = InProcessGrid(client_app(OPTIONS["model"], FEDERATION), node_configs=nodes)
    return run_on(grid, OPTIONS | {"method": method} | ON_GRID | options)


def test_they_are_as_short_as_the_page_says() -> None:
    assert lines(METHOD) <= 25
    assert lines(RULE) <= 20


@pytest.mark.parametrize("more", [{}, {"secure_sums": True}, {"participation": 0.5, "workers": 2}])
def test_the_method_computes_fedavg(more: dict[str, Any]) -> None:
    theirs, ours = (here(name, **more) for name in ("screen", "fedavg:weighting=uniform"))
    assert torch.equal(theirs.models[0], ours.models[0])
    assert theirs.summary.bytes == ours.summary.bytes


def test_the_method_runs_with_noise_also_on_secure_sums() -> None:
    for more in ({}, {"secure_sums": True}):
        theirs, ours = (here(name, dp_noise=1.0, **more) for name in ("screen", "fedavg:weighting=uniform"))
        assert theirs.summary.epsilon == ours.summary.epsilon
        assert not torch.equal(theirs.models[0], ours.models[0])  # noise is drawn for each run


def test_the_method_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = here("screen")
    here("screen", out=tmp_path / "run", max_bytes=1)
    assert len(coterie.load(tmp_path / "run").history) == 1
    resumed = coterie.resume(tmp_path / "run", federation=FEDERATION, max_bytes=10**12)
    assert len(resumed.history) == 3
    assert torch.equal(resumed.models[0], whole.models[0])


@pytest.mark.parametrize("more", [{}, {"secure_sums": True}])
def test_the_method_runs_over_flower_messages(more: dict[str, Any]) -> None:
    theirs, ours = on_grid("screen", **more), here("screen", **more)
    torch.testing.assert_close(theirs.models[0], ours.models[0], rtol=1e-4, atol=1e-6)
    assert not [fault for record in theirs.history for fault in record.faults]


def test_the_rule_splits_here_and_over_flower_messages_alike() -> None:
    local, there = here(RULED), on_grid(RULED)
    assert len(local.clusters) > 1
    assert there.clusters == local.clusters
    assert [event.text for record in local.history for event in record.events if event.kind == "split"]
    assert make_rule("opposed").above == 0.0


def test_the_rule_needs_single_updates_and_is_refused_where_there_are_none() -> None:
    assert make_method(RULED).needs.updates == "must"
    with pytest.raises(ConfigError, match="secure sums do not show"):
        here(RULED, secure_sums=True)
