"""The benchmark as a whole: tables, resuming, memory of a process and its descendants, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from coterie import Training
from coterie.cli import main
from coterie.errors import RunError
from coterie_bench.entries import ENTRIES
from coterie_bench.findings import BenchOptions, Entry, Finding, Limit
from coterie_bench.measure import Spread
from coterie_bench.memory import PROC, family, family_bytes, measure_memory
from coterie_bench.scaling import draw_growth, slope, time_growth
from coterie_bench.server_side import time_server
from coterie_bench.session import run_bench
from coterie_bench.table import cells, markdown
from coterie_bench.workloads import Workload

TINY = Workload(6, 8, "mlp:hidden=9", (12,), 3, Training(lr=0.2, steps=4, batch_size=None), k=3)


def made_finding(value=3.0):
    finding = Finding("a workload", first_round={"coterie": 0.5}, notes=["a note"])
    times = {"ours": 1.0, "theirs": 3.0, "ours_cpu": 1.5, "theirs_cpu": 6.0}
    shares = {"ours": 0.5, "theirs": 0.125}
    finding.judge(Limit("× plain loop", 2.5), Spread(value, 2.0, 4.0), shares=shares, why="too slow", **times)
    finding.leave_out(Limit("× fluke", 6), "fluke not installed")
    return finding


def counted(calls, name="row"):
    def measure(options):
        calls.append(options.repeat)
        return made_finding()

    return Entry(name, "a workload", ("≥ 2.5 × plain loop",), measure)


def test_a_row_has_the_limit_the_value_and_the_reason(tmp_path):
    results = run_bench([counted([])], BenchOptions(), tmp_path)
    met, absent = cells("row", results["rows"]["row"])
    assert met == ["row", "a workload", "≥ 2.5 × plain loop", "3 (2-4)", "1", "3", "1.5 / 6", "2 / 8", "50 / 12", "yes"]
    assert absent == ["", "", "≥ 6 × fluke", *"------", "-: fluke not installed"]
    missed = {**results, "rows": {"row": {**results["rows"]["row"], "lines": made_finding(2.0).lines}}}
    text = markdown(missed)
    assert "| 2 (2-4) | 1 | 3 | 1.5 / 6 | 2 / 8 | 50 / 12 | no: too slow |" in text
    assert "* row: first round of coterie 0.5 s" in text
    assert (tmp_path / "table.md").read_text() == markdown(results)
    assert json.loads((tmp_path / "bench.json").read_text())["rows"]["row"]["notes"] == ["a note"]


def test_a_busy_machine_is_named_in_the_table(tmp_path):
    results = run_bench([counted([])], BenchOptions(), tmp_path)
    for load, noted in ((0.1, False), (99.0, True)):
        results["machine"]["load"] = load
        assert ("busy with other work" in markdown(results)) is noted


def test_resume_reuses_rows_of_the_same_options_only(tmp_path):
    calls = []
    entry = counted(calls)
    first = run_bench([entry], BenchOptions(repeat=2), tmp_path)
    again = run_bench([entry], BenchOptions(repeat=2), tmp_path, resume=True)
    assert calls == [2]
    assert again["rows"] == first["rows"]
    run_bench([entry], BenchOptions(repeat=3), tmp_path, resume=True)
    run_bench([entry], BenchOptions(repeat=3), tmp_path)
    assert calls == [2, 3, 3]
    (tmp_path / "rows" / "row.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        run_bench([entry], BenchOptions(repeat=3), tmp_path, resume=True)


def test_rows_that_are_done_survive_one_that_fails(tmp_path):
    def breaks(options):
        raise RunError("out of luck")

    calls = []
    with pytest.raises(RunError):
        run_bench([counted(calls), Entry("bad", "", (), breaks)], BenchOptions(), tmp_path)
    assert list(json.loads((tmp_path / "bench.json").read_text())["rows"]) == ["row"]
    run_bench([counted(calls)], BenchOptions(), tmp_path, resume=True)
    assert len(calls) == 1


def test_limits_are_lower_or_upper_bounds():
    assert Limit("×", 2).met_by(2)
    assert not Limit("×", 2).met_by(1.9)
    assert Limit("s", 2, at_most=True).met_by(2)
    assert not Limit("s", 2, at_most=True).met_by(2.1)


def test_slope_is_the_exponent():
    clients = [10, 30, 100]
    assert slope(clients, [3 * c for c in clients]) == pytest.approx(1)
    assert slope(clients, [0.1 * c**1.5 for c in clients]) == pytest.approx(1.5)


def test_growth_is_measured_and_drawn(tmp_path):
    finding = time_growth(BenchOptions(scale="full", repeat=1, workers=1), TINY, [4, 8, 16])
    assert finding.details["clients"] == [4, 8, 16]
    assert finding.lines[0]["found"]["median"] == finding.details["slope"]
    draw_growth(finding.details, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_server_row_compares_with_one_product():
    finding = time_server(BenchOptions(scale="full", repeat=2), clients=20, size=5000)
    assert [line["must"] for line in finding.lines] == ["≤ 1.3 × one GEMM", "≤ 0.1 s for the bipartition"]
    ratios = [a / b for a, b in zip(finding.seconds["coterie"], finding.seconds["one GEMM"], strict=True)]
    assert finding.lines[0]["found"]["high"] == max(ratios)


needs_proc = pytest.mark.skipif(not (PROC / "self" / "smaps_rollup").exists(), reason="needs Linux's /proc")


@needs_proc
def test_a_family_is_a_process_and_its_descendants():
    script = "held = b'x' * 30_000_000; print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1) as child:
        child.stdout.readline()
        try:
            assert {os.getpid(), child.pid} <= family(os.getpid())
            assert family(child.pid) == {child.pid}
            assert 30_000_000 < family_bytes(child.pid) < 90_000_000
            assert family_bytes(os.getpid()) > family_bytes(child.pid)
        finally:
            child.stdin.write(b"\n")
            child.stdin.close()


@needs_proc
def test_memory_is_what_lies_above_the_data():
    finding = measure_memory(BenchOptions(scale="full", workers=1), TINY)
    details = finding.details
    assert details["data_bytes"] == 6 * (8 * 12 * 4 + 8 * 8)
    found = finding.lines[0]["found"]["median"]
    assert found == (max(details["peak_bytes"]) - details["data_bytes"]) / 1e9
    assert 0.05 < found < 1.5


@pytest.fixture
def coterie(capfd, tmp_path, monkeypatch):
    """Run the command in an empty folder, its lines long enough: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def call(*words):
        code = 0
        try:
            main(list(words))
        except SystemExit as stop:
            code = stop.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize(
    "words", [["w7"], ["--repeat", "0"], ["--scale", "huge"], ["w1-50", "nonsense"], ["--workers", "none"]]
)
def test_bad_input_fails_with_one_line(coterie, tmp_path, words):
    code, out, err = coterie("bench", *words)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_list_names_every_row_and_measures_nothing(coterie, tmp_path):
    code, out, _ = coterie("bench", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(ENTRIES)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_table_and_json(coterie, tmp_path):
    code, out, err = coterie("bench", "overhead", "--repeat", "1", "--out", "here")
    assert code == 0
    assert "repetition 1 of 1" in err
    assert "≤ 0.1 s per round" in out
    assert set(json.loads((tmp_path / "here" / "bench.json").read_text())["rows"]) == {"overhead"}
    assert "1000 clients" in (tmp_path / "here" / "table.md").read_text()
    code, out, err = coterie("bench", "overhead", "--repeat", "1", "--out", "here", "--resume")
    assert "reused" in err
