"""The report: one HTML file that needs nothing else, says what the run says, and takes no orders from the data."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from coterie.cli import main
from coterie.clustering.sketch import sketch
from coterie.errors import ConfigError, RunError
from coterie.methods.cfl_state import State, Track
from coterie.methods.tree import Branch, Tree
from coterie.report import write_plots, write_report
from coterie.report.comparing import gain_rows
from coterie.report.markup import VOID
from coterie.report.matrix import arranged, reduced
from coterie.report.page import make_report
from coterie.report.reading import Gains, course_of_clusters, find_baselines, gains_over, read_run
from coterie.report.words import gain_words, size, verdict
from coterie.runs.comparison import read_comparison
from coterie.runs.folder import Checkpoint, RunFolder
from coterie.runs.metrics import spread

NASTY = "<script>alert('&\"$x^2$')</script>"


def write_run(path, *, method="cfl", clients=8, rounds=6, split=3, accuracy=0.9, finished=True, data="print-1"):
    """A run folder as a run of CFL with one split leaves it, with numbers from formulas; client 0 has a nasty id."""
    ids = [NASTY, *(f"c{i:04}" for i in range(1, clients))]
    sides = [ids[: clients // 2], ids[clients // 2 :]]
    config = {"method": method, "scenario": "toy", "data": None, "model": "mlp", "rounds": rounds, "seed": 0}
    with RunFolder.create(path, config | {"federation": data}) as folder:
        for t in range(1, rounds + 1):
            apart = method == "cfl" and t >= split
            event = {"kind": "split", "text": f"cluster 0 splits; {NASTY} is there", "details": {"cluster": 0}}
            level = accuracy * t / rounds
            folder.append_history(
                {
                    "round": t,
                    "bytes": {"up": 1000 * clients, "down": 1000 * clients},
                    "clusters": [
                        {"members": len(side), "mean_norm": 1 / t, "max_norm": 2 / t, "accuracy": level, "loss": 1.0}
                        for side in (sides if apart else [ids])
                    ],
                    "accuracy": {"mean": level, "worst10": level / 2, "best10": min(1.0, 1.1 * level)},
                    "loss": {"mean": 1.0},
                    "events": [event] if method == "cfl" and t == split else [],
                    "faults": [],
                    "seconds": 0.1,
                }
            )
        if method == "cfl":
            generator = torch.Generator().manual_seed(1)
            updates = torch.randn(clients, 12, generator=generator)
            updates[: clients // 2, 0] += 9
            halves = (slice(clients // 2), slice(clients // 2, None))
            branches = [
                Branch(tuple(side), torch.zeros(12), sketch(updates[half]))
                for side, half in zip(sides, halves, strict=True)
            ]
            tree = Tree.single(ids, torch.zeros(12)).split(0, branches, split, {"separation": 0.8, "noise": 0.25})
            state = State(tree, {1: Track(), 2: Track()}, {}, {}, {NASTY: 0})
            folder.save_checkpoint(Checkpoint(rounds, state, {}, 0, 0, 1.0))
        if finished:
            scores = [accuracy * (0.5 + 0.5 * i / clients) for i in range(clients)]
            members = sides if method == "cfl" else [ids]
            rows = [
                {"client": c, "cluster": 0 if c in members[0] else 1, "test_samples": 9, "loss": 0.1, "accuracy": a}
                for c, a in zip(ids, scores, strict=True)
            ]
            folder.write_json("clients.json", rows)
            sent = 1000 * clients * rounds
            summary = {"method": method, "scenario": "toy", "clusters": members, "clients": clients, "rounds": rounds}
            rest = {"accuracy": spread(scores), "loss": {"mean": 0.1}, "ari": 1.0, "bytes": {"up": sent, "down": sent}}
            folder.write_json("summary.json", summary | rest | {"seconds": 1.5, "seed": 0, "model": "mlp"})
    return path


class Reader(HTMLParser):
    """Checks that every element that opens closes, in order; keeps tags, ids and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        assert not [name for name, _ in attributes if name.startswith("on")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs side by side, CFL and its baseline."""
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "cfl")
    write_run(place / "fedavg", method="fedavg", accuracy=0.6)
    return place


@pytest.fixture(scope="module")
def page(folder):
    return make_report(folder / "cfl")


@pytest.fixture(scope="module")
def comparison_page(folder):
    return make_report(folder)


def test_the_page_is_well_formed_and_asks_nobody_for_anything(page, comparison_page):
    for text in (page, comparison_page):
        found = Reader(text)
        assert {"html", "main", "svg", "table", "figure"} <= set(found.tags)
        assert not {"script", "link", "iframe", "object"} & set(found.tags)
        assert len(found.ids) == len(set(found.ids))
        assert not re.search(r"https?://", text)
        assert not re.search(r"(src|href)=\"(?!#|data:)", text)
        assert not re.search(r"url\((?!#)", text)


def test_references_inside_a_figure_find_their_targets(page):
    ids = set(Reader(page).ids)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert used
    assert used <= ids


def test_a_name_from_the_data_is_text(page):
    assert NASTY not in page
    assert NASTY in "".join(Reader(page).text)


def test_the_page_says_what_the_run_found(page):
    text = " ".join("".join(Reader(page).text).replace("\u00a0", " ").split())
    assert "It found 2 clusters, of 4 and 4 clients. The split came in round 3." in text
    assert "exactly the groups that were hidden" in text
    assert "Against fedavg, 8 of 8 clients gained and 0 lost" in text
    assert "Was it worth it? Yes" in text
    assert "96 kB were sent in all, 12 kB a client. That is as much as fedavg sent." in text
    assert "split in round 3: separation 0.8, noise 0.25" in text
    assert "1 client is served by a model further up" in text


def test_figures_take_the_colour_of_the_page(page):
    assert "currentColor" in page
    assert "#7a7b7c" not in page


def test_the_same_folder_gives_the_same_bytes(page, folder):
    assert make_report(folder / "cfl") == page


def test_an_unfinished_run_has_a_report(tmp_path):
    path = write_run(tmp_path / "run", finished=False)
    (path / "checkpoint.safetensors").unlink()
    text = make_report(path)
    Reader(text)
    assert "The run is not finished: 6 of 6 rounds are done." in text
    empty = tmp_path / "empty"
    RunFolder.create(empty, {"method": "cfl", "rounds": 5}).close()
    assert "0 of 5 rounds are done" in make_report(empty)


def test_many_clients_and_rounds_stay_small(tmp_path):
    write_run(tmp_path / "cfl", clients=2400, rounds=100, split=40)
    write_run(tmp_path / "local", method="local", clients=2400, rounds=100)
    target = write_report(tmp_path / "cfl", tmp_path / "out" / "report.html")
    text = target.read_text()
    assert target.stat().st_size <= 5_000_000
    assert Reader(text).tags.count("tr") < 200
    assert "The worst 50 and the best 10 of 2400 clients." in text


def test_clusters_keep_their_number_through_splits():
    def record(t, sizes, *retired):
        events = [{"kind": "split", "details": {"cluster": c}} for c in retired]
        return {"round": t, "clusters": [{"members": size} for size in sizes], "events": events}

    course = course_of_clusters([record(1, [9]), record(2, [5, 4], 0), record(3, [4, 3, 2], 1), record(4, [4, 3, 2])])
    assert {series.cluster: (series.rounds, series.members) for series in course} == {
        0: ([1], [9]),
        1: ([2], [5]),
        2: ([2, 3, 4], [4, 4, 4]),
        3: ([3, 4], [3, 3]),
        4: ([3, 4], [2, 2]),
    }
    assert [s.cluster for s in course_of_clusters([record(1, [5, 4]), record(2, [6, 3])])] == [0, 1]


def test_the_matrix_is_in_the_order_of_the_clusters():
    values = np.arange(16.0).reshape(4, 4)
    found = arranged(values, [1, 0, 1, 0], "so")
    assert found.values.tolist() == values[np.ix_([1, 3, 0, 2], [1, 3, 0, 2])].tolist()
    assert (found.clusters, found.sizes) == ([0, 1], [2, 2])


def test_the_matrix_of_a_run_shows_the_two_sides(folder):
    found = read_run(folder / "cfl").matrix
    assert found is not None
    assert found.sizes == [4, 4]
    assert np.allclose(np.diag(found.values), 1, atol=0.01)
    inside = found.values[:4, :4][~np.eye(4, dtype=bool)]
    assert inside.min() > found.values[:4, 4:].max()


@pytest.mark.parametrize("n", [5, 7, 12, 30])
def test_a_large_matrix_is_means_over_blocks(n):
    values = np.random.default_rng(n).normal(size=(n, n))
    small = reduced(values, 5)
    bounds = np.linspace(0, n, min(n, 5) + 1).astype(int)
    expected = [[values[a:b, c:d].mean() for c, d in itertools.pairwise(bounds)] for a, b in itertools.pairwise(bounds)]
    assert np.allclose(small, expected)


def test_gains_are_differences_worst_first(folder):
    run, baseline = read_run(folder / "cfl"), read_run(folder / "fedavg")
    found = gains_over(run, baseline)
    assert found is not None
    assert found.values == sorted(found.values)
    assert dict(found.by_client)[NASTY] == pytest.approx(0.3 * 0.5)
    assert [one.method for one in find_baselines(folder / "cfl", run.config)] == ["fedavg"]


def test_a_baseline_must_be_on_the_same_clients(folder, tmp_path):
    other = write_run(tmp_path / "elsewhere", method="local", data="print-2")
    with pytest.raises(RunError, match="other clients or data"):
        make_report(folder / "cfl", other)
    half = write_run(tmp_path / "half", method="local", finished=False)
    with pytest.raises(RunError, match="not finished"):
        make_report(folder / "cfl", half)
    write_run(tmp_path / "cfl")
    assert find_baselines(tmp_path / "cfl", read_run(tmp_path / "cfl").config) == []
    with pytest.raises(ConfigError, match="--baseline goes with a run folder"):
        make_report(folder, other)


def gains(name, *values):
    return Gains(name, [(str(i), v) for i, v in enumerate(sorted(values))])


def test_the_verdict_follows_the_gains():
    def told(*values):
        return verdict([gains("fedavg", *values)])

    assert "Yes" in told(0.2, 0.1, 0.0)
    assert "For most" in told(0.3, 0.2, -0.05)
    assert "For some: the average client gains over fedavg, yet 2 of 3 lose" in told(0.4, -0.05, -0.05)
    assert "Hardly" in told(0.005, 0.0, -0.005)
    assert "No" in told(-0.1, 0.0, 0.0)
    assert verdict([]) == ""
    assert "No: local serves" in verdict([gains("fedavg", 0.3), gains("local", -0.2)])
    assert "better served than with fedavg and local" in verdict([gains("fedavg", 0.3), gains("local", 0.2)])
    assert gain_words(Gains("local", [("b", -0.02), ("a", 0.04)])) == (
        "Against local, 1 of 2 clients gained and 1 lost; on average +1.0 percentage points. "
        "The largest loss is 2.0 points (b)."
    )
    assert [size(n) for n in (12, 1500, 2.5e6, 3e9)] == ["12 bytes", "1.5 kB", "2.5 MB", "3 GB"]


def test_plots_are_written_as_png_and_svg(folder, tmp_path):
    files = write_plots(folder / "cfl", tmp_path / "figures")
    names = {file.stem for file in files}
    assert names == {"accuracy", "tree", "matrix", "gain-over-fedavg", "norms", "communication"}
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG" if file.suffix == ".png" else b"<?xml")
    assert {file.stem for file in write_plots(folder, tmp_path / "both")} == {"comparison", "spread"}


def test_a_comparison_has_its_table_and_its_best_method_in_detail(folder, comparison_page):
    text = "".join(Reader(comparison_page).text)
    assert "2 methods compared" in text
    summary = json.loads((folder / "cfl" / "summary.json").read_text())
    assert f"{100 * summary['accuracy']['mean']:.2f}" in text
    assert "The best of the others in detail: cfl, seed 0" in text
    rows = gain_rows(folder, read_comparison(folder))
    assert rows == [("cfl", "8", "0", "+21.6", "+15.0")]  # 0.3 (1/2 + i/16) for i = 0 … 7


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="no such folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(RunError, match="neither a run folder nor"):
        write_report(tmp_path)


def test_the_commands_say_what_they_wrote(folder, tmp_path, capfd):
    main(["report", str(folder / "cfl"), "--out", str(tmp_path / "a.html"), "--baseline", str(folder / "fedavg")])
    assert capfd.readouterr().out == f"{tmp_path / 'a.html'}\n"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    main(["plot", str(folder / "fedavg"), "--out", str(tmp_path / "figures")])
    files = capfd.readouterr().out.split()
    assert sorted(files) == sorted(str(file) for file in (tmp_path / "figures").iterdir())
    assert len(files) == 6
