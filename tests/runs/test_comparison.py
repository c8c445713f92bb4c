"""A comparison's table says what the runs' own summaries say, a failed method leaves the others alone, and the same
command goes on where it was stopped."""

from __future__ import annotations

import json

import pytest

from coterie.cli import main
from coterie.errors import ConfigError, RunError
from coterie.report.tables import as_csv, cells, columns, markdown, problems
from coterie.runs import api, loop
from coterie.runs.comparison import compare, read_comparison, run_folder, split_methods
from coterie.runs.config import make_config
from coterie.runs.ranking import over_seeds, rounds_to
from coterie.runs.records import Bytes, RoundRecord, Spread, to_json

OPTIONS = {"scenario": "xor", "clients": 6, "samples": 20, "rounds": 8, "evaluate_every": 2}
METHODS = ["fedavg", "ifca:k=2", "local", "fedavg:nothing=1", "flt:case=1,clusters=2"]


class StopAfter:
    """A callback that ends the run in the middle, as an interrupt would."""

    def __init__(self, rounds):
        self.rounds = rounds

    def on_start(self, run, done):
        pass

    def on_event(self, t, event):
        pass

    def on_end(self, result):
        pass

    def on_round(self, record):
        if record.round == self.rounds:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of which one run was half done and one complete before; the folder, the table, what was before."""
    place = tmp_path_factory.mktemp("comparison") / "all"
    with pytest.raises(RunError, match=r"every method failed; fedavg:nothing=1: .*no option"):
        compare(["fedavg:nothing=1"], out=place, seeds=1, workers=1, **OPTIONS)
    half = run_folder(place, "local", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "checkpoint_pause", lambda cost: 0.0)
        config = make_config(OPTIONS | {"method": "local", "seed": 1})
        with pytest.raises(KeyboardInterrupt):
            api.start(config, out=half, callbacks=[StopAfter(3)])
    whole = run_folder(place, "fedavg", 0)
    api.start(make_config(OPTIONS | {"method": "fedavg", "seed": 0}), out=whole)
    before = {folder: history(folder) for folder in (half, whole)}
    told = []
    table = compare(METHODS, out=place, seeds=2, workers=1, say=told.append, **OPTIONS)
    return place, table, before, told


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_part_with_an_equals_sign_belongs_to_the_method_before_it():
    assert split_methods(["fedavg,ifca:k=4,init=random,cfl"]) == ["fedavg", "ifca:k=4,init=random", "cfl"]
    assert split_methods(["ifca,k=4,cfl"]) == ["ifca:k=4", "cfl"]
    assert split_methods(["a:x=[1,2],y=(3,4),b"]) == ["a:x=[1,2],y=(3,4)", "b"]
    assert split_methods(["fedavg, cfl", "local,fedavg"]) == ["fedavg", "cfl", "local"]


@pytest.mark.parametrize("texts", [["k=4,cfl"], [""], [], ["fedavg", "k=4"]])
def test_a_list_without_a_method_to_begin_with_is_refused(texts):
    with pytest.raises(ConfigError):
        split_methods(texts)


def test_rounds_to_a_target_are_the_first_that_reach_it():
    means = {1: 0.5, 2: None, 3: 0.8, 4: 0.7}  # the second round was not evaluated
    course = [
        RoundRecord(t, [], Bytes(), 0.0, {} if mean is None else {"accuracy": Spread(mean)})
        for t, mean in means.items()
    ]
    assert rounds_to(course, 0.8) == 3
    assert rounds_to(course, 0.81) is None
    assert rounds_to(course, None) is None


def test_mean_and_deviation_by_hand():
    assert over_seeds([1.0, None, 3.0]) == {"mean": 2.0, "std": 1.0, "values": [1.0, 3.0]}
    assert over_seeds([None]) is None


def test_the_table_says_what_the_summaries_say(compared):
    place, table, _, _ = compared
    assert table == json.loads((place / "comparison.json").read_text())
    for row in table["rows"][:3]:
        folders = [place / row["folders"][seed] for seed in ("0", "1")]
        runs = [summary(folder) for folder in folders]
        for name, values in {
            "accuracy": [run["metrics"]["accuracy"]["mean"] for run in runs],
            "worst10": [run["metrics"]["accuracy"]["worst10"] for run in runs],
            "variance": [run["metrics"]["accuracy"]["variance"] for run in runs],
            "clusters": [len(run["clusters"]) for run in runs],
            "ari": [run["ari"] for run in runs],
            "bytes": [run["bytes"]["up"] + run["bytes"]["down"] for run in runs],
            "seconds": [run["seconds"] for run in runs],
        }.items():
            known = [value for value in values if value is not None]
            assert (row[name]["values"] if row[name] else []) == known, name
        reached = [
            next(
                (
                    r["round"]
                    for r in history(f)
                    if "accuracy" in r["metrics"] and r["metrics"]["accuracy"]["mean"] >= table["target"]
                ),
                None,
            )
            for f in folders
        ]
        assert row["rounds_to_target"] == reached
    best = max(table["rows"][:3], key=lambda row: row["accuracy"]["mean"])
    assert table["best"] == best["method"]
    assert table["target"] == pytest.approx(0.9 * best["accuracy"]["mean"])


def test_a_seed_makes_one_federation_for_all_methods(compared):
    place, table, _, _ = compared
    prints = {
        seed: {json.loads((place / row["folders"][seed] / "config.json").read_text())["federation"] for row in rows}
        for seed in ("0", "1")
        for rows in [table["rows"][:3]]
    }
    assert [len(found) for found in prints.values()] == [1, 1]
    assert prints["0"] != prints["1"]


def test_a_method_that_fails_says_why_and_loses_nobody(compared):
    _, table, _, told = compared
    assert [row["finished"] for row in table["rows"]] == [[0, 1], [0, 1], [0, 1], [], []]
    early, late = (row["failures"] for row in table["rows"][3:])
    assert "no option 'nothing'" in early["0"]  # known before anything is run
    assert "clusters goes with case=2" in late["1"]  # known to the run alone
    assert problems(table) == [
        ("fedavg:nothing=1", f"failed with seed 0, 1: {early['0']}"),
        ("flt:case=1,clusters=2", f"failed with seed 0, 1: {late['0']}"),
    ]
    assert cells(table)[3][:3] == ["fedavg:nothing=1", "failed", "-"]
    assert any("no option" in line for line in told)
    assert told[-1].endswith("(10 of 10)")


def test_what_was_done_before_is_not_done_again(compared):
    place, table, before, _ = compared
    # Seconds differ from run to run, so equal records were not made twice.
    for folder, records in before.items():
        assert history(folder)[: len(records)] == records
    assert len(before[run_folder(place, "local", 1)]) == 3
    assert summary(run_folder(place, "local", 1))["rounds"] == 8
    files = sorted(place.glob("*/*/history.jsonl"))
    times = [file.stat().st_mtime_ns for file in files]
    again = compare(METHODS[:3], out=place, seeds=2, workers=1, **OPTIONS)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert again["rows"] == table["rows"][:3]


def test_a_resumed_run_ends_as_an_uninterrupted_one(compared, tmp_path):
    place, _, _, _ = compared
    alone = api.start(make_config(OPTIONS | {"method": "local", "seed": 1}), out=None)
    resumed = summary(run_folder(place, "local", 1))
    assert to_json(alone.summary.metrics) == resumed["metrics"]
    assert to_json(alone.summary.bytes) == resumed["bytes"]


def test_other_options_or_a_strange_folder_are_refused(compared, tmp_path):
    place, _, _, _ = compared
    with pytest.raises(RunError, match="rounds=8, now it is 9"):
        compare(METHODS, out=place, **(OPTIONS | {"rounds": 9}))
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="not a comparison's folder"):
        compare(METHODS, out=tmp_path, **OPTIONS)
    with pytest.raises(ConfigError, match="unknown scenario"):
        compare(METHODS, out=tmp_path / "new", scenario="nowhere")
    assert not (tmp_path / "new").exists()


def test_runs_that_lie_side_by_side_are_a_comparison_too(compared, tmp_path):
    place, _, _, _ = compared
    for method in ("fedavg", "local"):
        (tmp_path / method).symlink_to(run_folder(place, method, 0))
    found = read_comparison(tmp_path)
    assert [row["method"] for row in found["rows"]] == ["fedavg", "local"]
    assert (
        found["rows"][0]["accuracy"]["mean"] == summary(run_folder(place, "fedavg", 0))["metrics"]["accuracy"]["mean"]
    )
    with pytest.raises(RunError, match="neither a run folder nor"):
        read_comparison(tmp_path / "fedavg" / "models")


def test_markdown_and_csv_hold_the_same_numbers(compared):
    _, table, _, _ = compared
    accuracy = table["rows"][0]["accuracy"]
    line = markdown(table).splitlines()[2]
    assert line.startswith(f"| fedavg | {100 * accuracy['mean']:.2f} ± {100 * accuracy['std']:.2f} | ")
    rows = [line.split(",") for line in as_csv(table).splitlines()]
    assert rows[0][:3] == ["method", "seeds", "accuracy_mean"]
    assert float(rows[1][2]) == accuracy["mean"]
    assert len(columns(table)) == len(cells(table)[0]) == 9


def test_the_command_writes_the_tables_and_prints_one(compared, capfd):
    place, table, _, _ = compared
    given = [word for key, value in OPTIONS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    main(["compare", "--methods", "fedavg,ifca,k=2", "--methods", "local", "--seeds", "2", "--out", str(place), *given])
    shown = capfd.readouterr()
    kept = json.loads((place / "comparison.json").read_text())
    assert kept["rows"][0] == table["rows"][0]
    assert "6 of 6 runs are kept from before" in shown.err
    assert (place / "table.md").read_text() == markdown(kept)
    assert (place / "table.csv").read_text() == as_csv(kept)
    for row in cells(kept):
        assert all(cell in shown.out for cell in row)
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--methods", "fedavg", "--rounds", "none", "--out", str(place)])
    assert stop.value.code == 2
