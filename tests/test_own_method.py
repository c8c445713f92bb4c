"""The method in docs/methods.md, as printed, in a package of its own: the same clusters on every engine."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import ConfigError
from coterie.methods import make_method
from coterie.tasks.base import Task
from printed import blocks, entry_points_in, install

CODE = blocks("methods.md")[0]
METHOD = "angles:clusters=2"
SIZES = {"clients": 8, "groups": 2, "samples": 40}
OPTIONS: dict[str, Any] = {"scenario": "digits-halves", **SIZES, "rounds": 3, "seed": 1}
TRUTH = [[f"client-{i}" for i in range(start, 8, 2)] for start in (0, 1)]


@pytest.fixture(autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The printed package, installed; afterwards nobody knows it."""
    (toml,) = blocks("methods.md", "toml")
    site = install(tmp_path_factory.mktemp("site"), "angles", CODE, entry_points_in(toml))
    monkeypatch.syspath_prepend(str(site))
    yield site
    from coterie.methods import base

    sys.modules.pop("angles", None)
    base._METHODS.pop("angles", None)
    for kind in [kind for kind in Task.kinds if kind.startswith("angles.")]:
        del Task.kinds[kind]


def imported(code: str) -> set[str]:
    """The packages and modules that code imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} if node.module != "coterie" else {f"coterie.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_it_is_short_and_uses_the_public_api_alone() -> None:
    assert len(CODE.splitlines()) <= 60
    assert {name for name in imported(CODE) if name.startswith("coterie")} <= {"coterie.methods"}
    from coterie import methods

    names = {node.attr for node in ast.walk(ast.parse(CODE)) if isinstance(node, ast.Attribute)
             and isinstance(node.value, ast.Name) and node.value.id == "cm"}  # fmt: skip
    assert names
    assert names <= set(methods.__all__)


def test_workers_change_nothing(tmp_path: Path) -> None:
    one = coterie.run(METHOD, workers=1, out=tmp_path / "one", **OPTIONS)
    two = coterie.run(METHOD, workers=2, out=tmp_path / "two", **OPTIONS)
    assert sorted(one.clusters) == sorted(two.clusters) == TRUTH
    assert one.summary.ari == 1.0
    for ours, theirs in zip(one.models, two.models, strict=True):
        assert torch.equal(ours, theirs)
    assert one.summary.bytes == two.summary.bytes


def test_it_resumes_and_is_known_to_the_reports(tmp_path: Path) -> None:
    whole = coterie.run(METHOD, workers=1, out=tmp_path / "run", **OPTIONS)

    class Stop(BaseException):
        pass

    class Stopper:
        def on_start(self, run: object, done: int) -> None: ...
        def on_event(self, t: int, event: object) -> None: ...
        def on_end(self, result: object) -> None: ...
        def on_round(self, record: Any) -> None:
            if record.round == 2:
                raise Stop

    with pytest.raises(Stop):
        coterie.run(METHOD, workers=1, out=tmp_path / "again", callbacks=[Stopper()], **OPTIONS)
    again = coterie.resume(tmp_path / "again", workers=1)
    for ours, theirs in zip(whole.models, again.models, strict=True):
        assert torch.equal(ours, theirs)
    first = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[0])
    assert first["assignment"] == {client: i for i, members in enumerate(whole.clusters) for client in members}
    from coterie_views.report import write_report

    page = Path(write_report(tmp_path / "run", None)).read_text()
    assert all(client in page for members in TRUTH for client in members)


def test_bytes_are_those_of_the_task() -> None:
    """Three vectors of 64 numbers per client before the first round; then an update and a loss in each."""
    result = coterie.run(METHOD, workers=1, **OPTIONS)
    first, *others = [record.bytes.up for record in result.history]
    assert others == [8 * (4 * result.layout.size + 8)] * 2
    assert first - others[0] == 8 * 4 * 3 * 64
    assert result.summary.bytes.up == first + sum(others)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("angles:p=0", "method 'angles', option p=0: expected whole number from 1"),
        ("angles:p=true", "method 'angles', option p=True: expected whole number from 1"),
        ("angles:treshold=1", "method 'angles' has no option 'treshold': did you mean 'threshold'"),
        ("angles:clusters=many", "option clusters='many': expected whole number from 1 or none"),
    ],
)
def test_its_options_are_checked(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_method(spec)


def test_one_client_is_refused_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match="use it with two or more"):
        coterie.run("angles", scenario="digits-iid", clients=1, rounds=1, workers=1)


def test_its_options_are_explained(capfd: pytest.CaptureFixture[str]) -> None:
    from coterie.cli import main

    main(["methods", "angles"])
    text = " ".join(capfd.readouterr().out.split())
    assert "p whole number from 1 3 Singular vectors that each client sends." in text
    assert "threshold number above 0 30.0 Clusters are merged" in text
    assert "Clusters clients once, by the principal angles" in text


def test_on_an_in_process_grid() -> None:
    """The ClientApp finds the task through the package's entry point."""
    pytest.importorskip("flwr", reason="needs coterie[flower]")
    from coterie.data import find_scenario
    from coterie.flower import InProcessGrid, client_app
    from coterie.flower.server import run_on

    federation = find_scenario(OPTIONS["scenario"]).build(**SIZES, seed=3)
    given: dict[str, Any] = {"method": METHOD, "model": "mlp:hidden=16", "rounds": 2, "seed": 1}
    here = coterie.run(federation=federation, workers=1, **given)
    Task.kinds.pop("angles.Subspace")  # as in a process that has not imported the package yet
    sys.modules.pop("angles")
    grid = InProcessGrid(
        client_app("mlp:hidden=16", federation), node_configs=[{"client": client} for client in federation.ids]
    )
    there = run_on(grid, given | {"timeout": 60.0, "wait": 5.0, "poll": 0.02})
    assert there.clusters == here.clusters
    assert sorted(here.clusters) == TRUTH
    for ours, theirs in zip(here.models, there.models, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert there.summary.bytes == here.summary.bytes
    assert not [fault for record in there.history for fault in record.faults]


def test_a_newcomer_joins_the_cluster_whose_model_fits_it() -> None:
    """A client that the state does not know is asked in the next round, and trains with its cluster from then on."""
    from coterie.runs.assemble import assemble
    from coterie.runs.config import make_config

    prepared, _ = assemble(make_config(OPTIONS | {"method": METHOD, "workers": 1}))
    method, server = prepared.method, prepared.server
    state = method.start(server)
    for t in (1, 2, 3):
        state, _ = method.round(state, t, server)
    own = state.cluster_of["client-7"]
    fewer = {client: j for client, j in state.cluster_of.items() if client != "client-7"}
    state, _ = method.round(type(state)(state.models, fewer), 4, server)
    assert state.cluster_of["client-7"] == own


def test_on_ray(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]))
    place = tempfile.mkdtemp(prefix="ray")  # a short path for Ray's sockets, and no other Ray
    monkeypatch.setenv("RAY_TMPDIR", place)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    try:
        here = coterie.run(METHOD, workers=1, **OPTIONS)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # an actor that cannot do the task would be one
            there = coterie.run(METHOD, workers=1, engine="ray", **OPTIONS)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert not ray.is_initialized()
    assert there.clusters == here.clusters
    for ours, theirs in zip(here.models, there.models, strict=True):
        assert torch.equal(ours, theirs)


def test_a_task_that_nobody_defines_names_the_packages_that_cannot_be_loaded(package: Path) -> None:
    from coterie.tasks.wire import find_task

    install(package, "broken", "import nothing_of_that_name", "[coterie.methods]\nbroken = broken:Method\n")
    importlib.invalidate_caches()
    assert find_task("angles.Subspace").__name__ == "Subspace"
    with pytest.raises(ConfigError, match=r"no task 'angles\.Gone'.*broken:Method of the package 'broken'"):
        find_task("angles.Gone")
