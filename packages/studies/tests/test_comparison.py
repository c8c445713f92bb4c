"""A comparison's table says what the runs' own summaries say, a failed method leaves the others alone, and the same
command goes on where it was stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie import DataOptions
from coterie.cli import main
from coterie.engines.spawning import start_method
from coterie.errors import ConfigError, CoterieError, RunError
from coterie.runs import api, loop
from coterie.runs.config import make_config
from coterie.runs.records import Bytes, RoundRecord, Spread, to_json
from coterie_studies import side_by_side
from coterie_studies.comparison import read_comparison, run_folder, run_methods, split_methods
from coterie_studies.ranking import ComparedRun, exchanges_to, over_seeds
from coterie_studies.run_options import config_values
from coterie_studies.side_by_side import NOTHING, ComparisonJob, Given, next_job, performed_in_pool
from coterie_studies.study import comparison_words
from coterie_studies.tables import (
    as_csv,
    as_latex,
    caption,
    cells,
    columns,
    difference_caption,
    difference_cells,
    in_latex,
    markdown,
    problems,
)

OPTIONS = {"scenario": "xor", "clients": 6, "samples": 20, "rounds": 8, "evaluate_every": 2}
METHODS = ["fedavg", "ifca:k=2", "local", "flt:case=1,clusters=2"]


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
    with pytest.raises(RunError, match=r"every method failed; flt:case=1,clusters=2: clusters goes with case=2"):
        run_methods(METHODS[3:], out=place, seeds=1, workers=1, **OPTIONS)
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
    table = run_methods(METHODS, out=place, seeds=2, workers=1, say=told.append, **OPTIONS)
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
    assert exchanges_to(course, 0.8) == 3
    assert exchanges_to(course, 0.81) is None
    assert exchanges_to(course, None) is None


def test_mean_and_deviation_by_hand():
    found = over_seeds([1.0, None, 3.0])
    assert found == {"mean": 2.0, "std": pytest.approx(2**0.5), "sem": pytest.approx(1.0), "values": [1.0, 3.0]}
    assert over_seeds([4.0]) == {"mean": 4.0, "std": None, "sem": None, "values": [4.0]}
    assert over_seeds([None]) is None


def test_the_table_says_what_the_summaries_say(compared):
    place, table, _, _ = compared
    assert table == json.loads((place / "comparison.json").read_text())
    for row in table["rows"][1:]:
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
                    sum(one["exchanges"] for one in history(f)[: r["round"]])
                    for r in history(f)
                    if "accuracy" in r["metrics"] and r["metrics"]["accuracy"]["mean"] >= table["target"]
                ),
                None,
            )
            for f in folders
        ]
        assert row["exchanges_to_target"] == reached
    best = max(table["rows"][1:], key=lambda row: row["accuracy"]["mean"])
    assert table["best"] == best["method"]
    assert table["target"] == pytest.approx(0.9 * best["accuracy"]["mean"])


def test_a_seed_makes_one_federation_for_all_methods(compared):
    place, table, _, _ = compared
    prints = {
        seed: {json.loads((place / row["folders"][seed] / "config.json").read_text())["federation"] for row in rows}
        for seed in ("0", "1")
        for rows in [table["rows"][1:]]
    }
    assert [len(found) for found in prints.values()] == [1, 1]
    assert prints["0"] != prints["1"]


def test_a_method_that_fails_says_why_and_loses_nobody(compared):
    _, table, _, told = compared
    assert [row["method"] for row in table["rows"]] == [METHODS[3], *METHODS[:3]]  # the first was there before
    assert [row["finished"] for row in table["rows"]] == [[], [0, 1], [0, 1], [0, 1]]
    why = table["rows"][0]["failures"]
    assert "clusters goes with case=2" in why["1"]  # known to the run alone
    assert problems(table) == [("flt:case=1,clusters=2", f"failed with seed 0, 1: {why['0']}")]
    assert cells(table)[0][:4] == ["flt:case=1,clusters=2", "0", "failed", "–"]
    assert told[-1].endswith("(8 of 8)")


@pytest.mark.parametrize(
    ("methods", "options", "words"),
    [
        (["fedavg", "ifac", "fedavg:nothing=1"], {}, r"ifac: .*did you mean 'ifca'.*; fedavg:nothing=1: .*no option"),
        (["fedavg"], {"scenario": "nowhere"}, "unknown scenario"),
        (["fedavg"], {"data": "no-such-folder", "scenario": None, "clients": None, "samples": None}, "no-such-folder"),
        (["fedavg"], {"model": "mpl"}, "did you mean 'mlp'"),
        (["fedavg"], {"ruonds": 3}, "did you mean 'rounds'"),
        (["fedavg"], {"baseline": "local"}, "baseline='local': not among the methods"),
        (["fedavg"], {"test": "z"}, "expected one of t, wilcoxon"),
        (["fedavg"], {"seeds": 0}, "expected 1 or more"),
    ],
)
def test_everything_is_checked_before_anything_is_trained(methods, options, words, tmp_path):
    with pytest.raises(CoterieError, match=words):
        run_methods(methods, out=tmp_path / "new", **(OPTIONS | options))
    assert not (tmp_path / "new").exists()


def test_what_was_done_before_is_not_done_again(compared):
    place, table, before, _ = compared
    # Seconds differ from run to run, so equal records were not made twice.
    for folder, records in before.items():
        assert history(folder)[: len(records)] == records
    assert len(before[run_folder(place, "local", 1)]) == 3
    assert summary(run_folder(place, "local", 1))["rounds"] == 8
    files = sorted(place.glob("*/*/history.jsonl"))
    times = [file.stat().st_mtime_ns for file in files]
    again = run_methods(METHODS[:3], out=place, seeds=2, workers=1, **OPTIONS)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert again == table


def test_a_folder_is_added_to_and_lends_its_options(compared):
    place, table, _, _ = compared
    told = []
    fewer = run_methods(["local"], out=place, say=told.append)
    assert fewer["rows"] == table["rows"]
    assert "as before in this folder: scenario=xor, clients=6, samples=20, rounds=8, evaluate_every=2" in told[0]
    assert run_methods(["local"], out=place, baseline="ifca")["baseline"] == {"method": "ifca:k=2", "named": True}
    assert read_comparison(place)["baseline"] == {"method": "ifca:k=2", "named": True}
    assert run_methods(["local"], out=place, baseline="fedavg")["rows"] == table["rows"]


def test_a_table_tells_differences_that_the_clients_files_tell(compared):
    place, _, _, _ = compared
    found = read_comparison(place, "fedavg")
    one = next(one for one in found["differences"] if one["method"] == "local")
    clients = {
        (method, seed): {
            row["client"]: row["metrics"]["accuracy"]
            for row in json.loads((run_folder(place, method, seed) / "clients.json").read_text())["rows"]
        }
        for method in ("fedavg", "local")
        for seed in (0, 1)
    }
    gaps = [
        np.mean([clients["local", seed][name] - clients["fedavg", seed][name] for name in clients["fedavg", seed]])
        for seed in (0, 1)
    ]
    assert (one["over"], one["pairs"], one["baseline"]) == ("seeds", 2, "fedavg")
    assert one["mean"] == pytest.approx(np.mean(gaps))
    assert len(found["differences"]) == 2


def test_a_resumed_run_ends_as_an_uninterrupted_one(compared, tmp_path):
    place, _, _, _ = compared
    alone = api.start(make_config(OPTIONS | {"method": "local", "seed": 1}), out=None)
    resumed = summary(run_folder(place, "local", 1))
    assert to_json(alone.summary.metrics) == resumed["metrics"]
    assert to_json(alone.summary.bytes) == resumed["bytes"]


def test_other_options_or_a_strange_folder_are_refused(compared, tmp_path):
    place, _, _, _ = compared
    with pytest.raises(RunError, match="rounds=8, now it is 9: give rounds=8 to add to it"):
        run_methods(METHODS, out=place, **(OPTIONS | {"rounds": 9}))
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="not a comparison's folder"):
        run_methods(METHODS, out=tmp_path, **OPTIONS)


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


def test_markdown_csv_and_latex_hold_the_same_numbers(compared):
    _, table, _, _ = compared
    accuracy = table["rows"][1]["accuracy"]
    shown = f"{100 * accuracy['mean']:.2f} ± {100 * accuracy['sem']:.2f}"
    assert markdown(table).splitlines()[3].startswith(f"| fedavg | 2 | {shown} | ")
    rows = [line.split(",") for line in as_csv(table).replace("case=1,", "").splitlines()]
    assert rows[0][:5] == ["method", "seeds", "accuracy_mean", "accuracy_std", "accuracy_sem"]
    assert [float(number) for number in rows[2][2:5]] == [accuracy[kind] for kind in ("mean", "std", "sem")]
    assert len(columns(table)) == len(cells(table)[0]) == 11
    latex = as_latex(table).splitlines()
    body = latex[latex.index(r"    \toprule") : latex.index(r"    \bottomrule")]
    assert {line.count(" & ") for line in body if line.endswith(r"\\")} == {latex[5].count("r") - 1}
    unmarked = [line.replace(r"\textbf{", "").replace("}", "") for line in body]
    assert any(line.startswith("    fedavg & 2 & " + in_latex(shown) + " & ") for line in unmarked)
    assert in_latex("a_b 5 % {x}") == r"a\_b 5 \% \{x\}"
    assert "adjusted Rand index" in caption(table)


def test_without_groups_there_is_no_rand_index(tmp_path):
    options = {"scenario": "digits-iid", "clients": 3, "samples": 20, "rounds": 1}
    table = run_methods(["fedavg", "local"], out=tmp_path / "one", **options)
    assert "With one seed the test is Student's t over its clients" in difference_caption(table)
    assert "which flatters it" in difference_caption(table)
    assert table["rows"][0]["ari"] is None
    assert cells(table)[0][columns(table).index("ARI")] == "–"
    assert "no groups" in caption(table)


def test_the_command_writes_the_tables_and_prints_one(compared, capfd, tmp_path):
    place, table, _, _ = compared
    given = [word for key, value in OPTIONS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    papers = ["--baseline", "fedavg", "--latex", str(tmp_path / "t.tex"), "--pdf", str(tmp_path / "c.pdf")]
    words = ["compare", "--methods", "fedavg,ifca,k=2", "--methods", "local", "--seeds", "2", "--out", str(place)]
    main([*words, *given, *papers])
    shown = capfd.readouterr()
    kept = json.loads((place / "comparison.json").read_text())
    assert kept["rows"] == table["rows"]
    assert "6 of 6 runs are kept from before" in shown.err
    assert (place / "table.md").read_text() == markdown(kept)
    assert (place / "table.csv").read_text() == as_csv(kept)
    for row in cells(kept)[1:] + difference_cells(kept):
        assert all(cell in shown.out for cell in row)
    assert difference_caption(kept) in shown.out
    assert (tmp_path / "t.tex").read_text() == as_latex(kept)
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
    for wrong in (["--rounds", "none"], ["--latex", str(tmp_path)], ["--pdf", str(tmp_path / "no" / "c.pdf")]):
        with pytest.raises(SystemExit) as stop:
            main(["compare", "--methods", "fedavg", "--out", str(place), *wrong])
        assert stop.value.code == 2


def test_python_compares_on_a_federation_of_its_own(tmp_path):
    draws = np.random.default_rng(0)
    data = {name: (draws.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for name in "abc"}
    federation = coterie.Federation.from_tensors(data, splits=(0.6, 0.0, 0.4))
    found = coterie.compare("fedavg,local", federation, seeds=2, rounds=2, baseline="fedavg", out=tmp_path / "own")
    assert [row["finished"] for row in found.table["rows"]] == [[0, 1], [0, 1]]
    assert str(found).splitlines()[1].startswith("fedavg")
    assert "paired t test over the seeds" in str(found)
    assert found.to_pandas().loc["local", "baseline"] == "fedavg"
    assert "<table>" in found._repr_html_()
    assert coterie.Comparison.load(tmp_path / "own").table == found.table
    other = coterie.Federation.from_tensors(data, splits=(0.5, 0.0, 0.5))
    with pytest.raises(RunError, match="holds a comparison with federation="):
        run_methods(["cfl"], out=tmp_path / "own", given=Given(other))
    half = run_folder(tmp_path / "own", "local", 1)
    (half / "summary.json").unlink()
    (half / "clients.json").unlink()
    again = coterie.compare(["local"], federation, seeds=2, rounds=2, out=tmp_path / "own")
    assert again.table["rows"][1]["accuracy"] == found.table["rows"][1]["accuracy"]


@pytest.mark.skipif(start_method() != "fork", reason="only forked processes inherit what cannot be sent")
def test_processes_side_by_side_inherit_what_python_gave_and_find_the_same(tmp_path):
    draws = np.random.default_rng(0)
    data = {name: (draws.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for name in "abc"}
    federation = coterie.Federation.from_tensors(data, splits=(0.6, 0.0, 0.4))

    def table(workers):
        pids = tmp_path / f"pids-{workers}"

        def loss(outputs, targets):  # cannot be sent to another process
            with pids.open("a") as file:
                file.write(f"{os.getpid()}\n")
            return torch.nn.functional.cross_entropy(outputs, targets)

        given = Given(federation, loss=loss)
        found = run_methods(["fedavg", "local"], out=tmp_path / str(workers), rounds=2, workers=workers, given=given)
        return [(row["method"], row["accuracy"]) for row in found["rows"]], set(pids.read_text().split())

    here, own = table(1)
    there, others = table(2)
    assert here == there
    assert own == {str(os.getpid())}
    assert not others & own


def jobs_of(methods, seeds):
    return [ComparisonJob(ComparedRun(m, seed, Path(f"{m}-{seed}")), {}) for seed in range(seeds) for m in methods]


def test_runs_begin_in_an_order_that_keeps_two_processes_busy_to_the_end():
    """The seconds of a real comparison; in the order given the last run goes on alone for 7 of 28.6 seconds."""
    lasts = {"fedavg": 3.9, "fedprox": 7.6, "ifca:k=4": 6.2, "cfl": 8.3}
    waiting, seconds, free, ends = jobs_of(lasts, 2), {}, [0.0, 0.0], []
    while waiting:
        now = min(free)
        seconds = {method: lasts[method] for end, method in ends if end <= now}
        method = waiting.pop(next_job(waiting, seconds)).trial.method
        free[free.index(now)] = now + lasts[method]
        ends.append((now + lasts[method], method))
    assert max(free) <= 1.02 * sum(2 * own for own in lasts.values()) / 2
    assert len(ends) == 8


def test_a_method_that_nobody_knows_begins_before_one_that_is_known_and_the_rest_as_given():
    waiting = jobs_of(["fedavg", "fedprox:mu=1", "cfl", "local"], 1)
    assert next_job(waiting, {}) == 1
    assert next_job(waiting, {"fedprox:mu=1": 9.0}) == 2
    assert next_job(waiting, {"fedprox:mu=1": 9.0, "cfl": 10.0}) == 2
    assert next_job(waiting[:1] + waiting[3:], {}) == 0


@pytest.mark.skipif(start_method() != "fork", reason="the change below is inherited by forked processes only")
def test_a_process_that_is_killed_fails_the_runs_that_are_left_and_not_the_comparison(monkeypatch):
    def perform(job, given):
        if job.trial.method == "cfl":
            os._exit(1)

    monkeypatch.setattr(side_by_side, "perform", perform)
    ended = list(performed_in_pool(jobs_of(["ifca:k=2", "cfl", "fedavg"], 2), 1, NOTHING, "fork"))
    assert sorted((trial.method, trial.seed) for trial, _ in ended) == sorted(
        (job.trial.method, job.trial.seed) for job in jobs_of(["ifca:k=2", "cfl", "fedavg"], 2)
    )
    failed = [trial.method for trial, problem in ended if problem is not None]
    assert "cfl" in failed
    assert [problem for trial, problem in ended if trial == ended[0][0]] == [None]


def test_the_options_of_a_comparison_are_those_of_a_run():
    given = {"drop": ["a", "b"], "class_weights": (1, 5), "data": Path("here"), "lr": 0.5, "rounds": None, "loss": len}
    flat = {"drop": "a,b", "class_weights": "1,5", "data": "here", "lr": 0.5}
    assert config_values(given, "mlp") == (flat | {"model": "mlp"}, None, len)
    grouped = {
        "data": DataOptions("here", drop=["a", "b"]),
        "training": {"lr": 0.5, "class_weights": "1,5", "loss": "bce"},
    }
    assert config_values(grouped, len) == (flat | {"loss": "bce"}, len, None)


def test_latex_sets_in_bold_all_that_cannot_be_told_from_the_best(tmp_path):
    how = {"rounds": 8, "clients": 8, "workers": 1}
    alike = coterie.compare(["fedavg", "fedprox"], scenario="digits-iid", out=tmp_path / "alike", **how)
    assert alike.to_latex().count(r"\textbf{") == 2
    assert "does not tell from it" in alike.to_latex()
    assert "A test at the 5 % level does not tell it from fed" in comparison_words(alike.table)
    apart = coterie.compare(["fedavg", "local"], scenario="digits-permuted", out=tmp_path / "apart", **how)
    assert apart.table["ties"] == []
    assert "does not tell it from" not in comparison_words(apart.table)
    assert next(line for line in apart.to_latex().splitlines() if r"\textbf{" in line).strip().startswith("local")


def test_the_settings_of_a_table_hold_for_every_method_of_a_comparison(tmp_path: Path) -> None:
    table = run_methods(["fedavg", "flt:as=table1", "local"], out=tmp_path / "c", as_published=True, **TABLE_OPTIONS)
    assert [row["method"] for row in table["rows"]] == ["fedavg:as=paper", "flt:as=table1", "local"]
    for row in table["rows"]:
        stored = json.loads((tmp_path / "c" / row["folders"]["0"] / "config.json").read_text())
        assert (stored["participation"], stored["batch_size"], stored["lr"]) == (0.2, 10, 0.5)
    with pytest.raises(ConfigError, match="name tables with different settings"):
        run_methods(["flt:as=table1", "ifca:as=table1-mnist"], out=tmp_path / "d", **TABLE_OPTIONS)


TABLE_OPTIONS = {"scenario": "digits-iid", "clients": 10, "rounds": 1, "lr": 0.5, "workers": 1}
