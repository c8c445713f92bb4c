"""Rows that time commands and whole runs: they run at a small size, and judge what they measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coterie.errors import RunError
from coterie_bench import commands, many, stages
from coterie_bench.commands import Time
from coterie_bench.findings import BenchOptions
from coterie_bench.workloads import CFL_MANY

ONCE = BenchOptions(repeat=1, workers=1)


def test_a_command_that_fails_is_said_in_its_own_words():
    with pytest.raises(RunError, match="unknown scenario 'nowhere'"):
        commands.timed(commands.coterie("run", "--scenario", "nowhere"))


def test_the_start_is_that_of_new_processes():
    found = commands.time_start(ONCE)
    assert [line["must"] for line in found.lines] == [
        "≤ 0.4 s for `coterie --help`",
        "≤ 1.15 × `import torch` for `import coterie`",
    ]
    assert {"torch", "coterie"} <= found.seconds.keys()
    assert {"torch", "coterie"} <= found.details["cpu_seconds"].keys()


def test_a_comparison_is_judged_by_one_process_over_two(monkeypatch):
    given = []

    def timed(arguments):
        given.append(arguments)
        return Time(20.0 if arguments[arguments.index("--workers") + 1] == "1" else 10.0, 19.0)

    monkeypatch.setattr(commands, "timed", timed)
    monkeypatch.setattr(commands, "two_at_once", lambda: 1.7)
    found = commands.time_compare(replace(ONCE, repeat=3))
    [line], [note] = found.lines, found.notes
    assert "do 1.70 times as much" in note
    assert line["found"]["median"] == 2.0
    assert line["met"]
    assert len(given) == 6


def test_two_processes_do_up_to_twice_as_much():
    # Beside other tests a single measurement can be off by more.
    assert any(0.5 < commands.two_at_once() < 2.5 for _ in range(5))


def test_rounds_of_many_clients_in_a_process_of_its_own():
    found = many.time_many(ONCE, clients=300)
    assert len(found.seconds["coterie"]) == many.ROUNDS - 1
    assert 0.05 < found.details["gigabytes"] < 4
    assert found.details["set-up"] > 0


def test_flts_first_stage_and_ray_say_what_they_need(monkeypatch):
    monkeypatch.setattr(stages, "find_spec", lambda name: None)
    assert [line["met"] for line in stages.time_flt(ONCE).lines] == [None, None]
    assert "coterie[ray]" in stages.time_ray(ONCE).lines[0]["reason"]


def test_cfl_is_timed_without_a_split():
    assert CFL_MANY.method().rule == "benefit(min_size=1000000)"
