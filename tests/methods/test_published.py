"""`as=paper`: the printed algorithm by one switch, and every departure of a default is one that is listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import coterie
from coterie.cli.method_commands import methods
from coterie.errors import ConfigError
from coterie.methods import find_method, make_method, method_classes
from coterie.methods.published import PAPERS, departures_of, paper_of
from coterie.option_types import field_types
from coterie.runs import make_config


@pytest.mark.parametrize("name", ["cfl", "ifca", "fedcuau", "flt"])
def test_a_departure_is_an_option_whose_default_is_another(name: str) -> None:
    cls = find_method(name)
    default, paper = make_method(name), make_method(f"{name}:as=paper")
    assert departures_of(cls)
    for departure in departures_of(cls):
        assert departure.option in field_types(cls)
        assert getattr(default, departure.option) != departure.paper
        assert getattr(paper, departure.option) == departure.paper


def test_what_is_given_beside_the_switch_counts() -> None:
    method = make_method("cfl:as=paper,rule=paper(eps1=0.4,eps2=1.6),weighting=uniform")
    assert (method.rule, method.fallback, method.weighting) == ("paper(eps1=0.4,eps2=1.6)", False, "uniform")


def test_other_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="option as='figure8': did you mean 'figure9'"):
        make_method("cfl:as=figure8")
    with pytest.raises(ConfigError, match="method 'local', option as='paper': it has no paper"):
        make_method("local:as=paper")


def test_every_method_names_its_paper_or_has_none() -> None:
    without = {
        name
        for name, cls in method_classes().items()
        if cls.__module__.startswith(("coterie.", "coterie_field.")) and not paper_of(cls)
    }
    assert without == {"auto", "local", "groups"}
    for name in set(PAPERS) - without:
        make_method(f"{name}:as=paper")


def test_a_table_gives_settings_that_the_users_own_override() -> None:
    config = make_config({"method": "ifca:as=table1-mnist", "lr": 0.3, "epochs": 2})
    assert (config.scenario, config.clients, config.samples, config.rounds) == ("mnist-rotated", 4800, 50, 300)
    assert (config.lr, config.epochs, config.steps, config.batch_size) == (0.3, 2, None, "full")
    assert make_method(config.method).k == 4


@pytest.mark.parametrize("own", [{"scenario": "digits-iid"}, {"data": "folder"}])
def test_a_tables_federation_does_not_count_beside_ones_own(own: dict[str, str]) -> None:
    config = make_config({"method": "flt:as=table1", **own})
    assert (config.clients, config.model, config.participation, config.lr) == (None, None, 0.2, 0.01)


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_every_table_makes_a_method_and_a_configuration(name: str) -> None:
    for version, table in PAPERS[name].tables.items():
        spec = f"{name}:as={version}"
        config = make_config({"method": spec})
        assert {key: getattr(config, key) for key in table.training} == table.training
        assert {key: getattr(config, key) for key in table.federation} == table.federation
        made = make_method(spec)
        assert {key: getattr(made, key) for key in table.options} == table.options


def test_a_run_as_published_says_so_and_is_resumed(tmp_path: Path) -> None:
    options = {"scenario": "digits-iid", "clients": 4, "rounds": 2, "workers": 1}
    run = coterie.run("cfl:fallback=true", as_published=True, out=tmp_path / "run", **options)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (stored["published"], stored["method"]) == ("paper", "cfl:rule=paper")
    assert coterie.resume(tmp_path / "run").clusters == run.clusters


def test_a_run_in_python_takes_what_is_given_before_the_tables(tmp_path: Path) -> None:
    options = {"scenario": "digits-iid", "clients": 4, "rounds": 1, "workers": 1}
    coterie.run("ifca:as=table1-cifar", participation=1.0, augment="flip", out=tmp_path / "run", **options)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (stored["published"], stored["participation"], stored["lr_schedule"]) == ("table1-cifar", 1.0, "decay:0.99")


def test_the_papers_rule_may_split_in_round_one() -> None:
    options = {"scenario": "digits-permuted", "clients": 6, "groups": 2, "rounds": 1, "workers": 1}
    result = coterie.run("cfl:as=paper,rule=paper(eps1=100,eps2=0.001,gamma_max=0.1)", **options)
    assert len(result.clusters) == 2


def test_ifca_as_published_begins_with_independent_draws() -> None:
    options = {"scenario": "digits-permuted", "clients": 6, "groups": 2, "rounds": 2, "workers": 1}
    switched, spelled = coterie.run("ifca:as=paper", **options), coterie.run("ifca:init=random", **options)
    assert all(torch.equal(a, b) for a, b in zip(switched.models, spelled.models, strict=True))


@pytest.mark.parametrize("spec", ["cfl paper", "ifca table1-mnist", "fedcuau table3-cifar", "flt table1"])
def test_the_settings_as_printed_are_one_screen(spec: str) -> None:
    name, version = spec.split()
    shown = CliRunner().invoke(methods, [name, "--as", version])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) <= 40
    assert paper_of(find_method(name)).citation in shown.output
