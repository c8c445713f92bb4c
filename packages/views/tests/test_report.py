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
from coterie.clustering import cosine_matrix
from coterie.errors import ConfigError, RunError
from coterie.methods import Matrix
from coterie.runs.folder import RunFolder
from coterie.runs.records import (
    Bytes,
    ClientRecord,
    ClusterRecord,
    EventRecord,
    ExplanationRecord,
    RoundRecord,
    SplitRecord,
    Spread,
    Summary,
    to_json,
)
from coterie.runs.rows import write_rows
from coterie_studies.comparing import gain_rows
from coterie_studies.comparison import read_comparison
from coterie_views.report import over_rounds, write_plots, write_report
from coterie_views.report.clients import ReportedClients, worst_first
from coterie_views.report.figures import short, thresholds
from coterie_views.report.markup import VOID, named
from coterie_views.report.matrix import arranged, reduced
from coterie_views.report.page import make_report
from coterie_views.report.reading import cluster_series, judged, read_run
from coterie_views.report.words import gain_words, size
from coterie_views.verdict import find_plain

NASTY = "<script>alert('&\"$x^2$')</script>"


def write_run(path, *, method="cfl", clients=8, rounds=6, split=3, accuracy=0.9, finished=True, data="print-1"):
    """A run folder as a run of CFL with one split leaves it, with numbers from formulas; client 0 has a nasty id."""
    ids = [NASTY, *(f"c{i:04}" for i in range(1, clients))]
    sides = {1: ids[: clients // 2], 2: ids[clients // 2 :]} if method == "cfl" else {0: ids}
    config = {"method": method, "scenario": "toy", "data": None, "model": "mlp", "rounds": rounds, "seed": 0}
    with RunFolder.create(path, config | {"federation": data}) as folder:
        for t in range(1, rounds + 1):
            now = sides if t >= split else {0: ids}
            splits = method == "cfl" and t == split
            folder.append_history(
                a_round(
                    t,
                    {number: len(members) for number, members in now.items()},
                    accuracy * t / rounds,
                    sent=1000 * clients,
                    assignment={c: i for i, own in now.items() for c in own} if t == 1 or splits else {},
                    splits=[SplitRecord(0, [*sides], [*sides.values()], {"separation": 0.8, "noise": 0.25})]
                    if splits
                    else [],
                    events=[EventRecord("split", f"cluster 0 splits; {NASTY} is there")] * splits,
                )
            )
        if method == "cfl":
            updates = torch.randn(clients, 12, generator=torch.Generator().manual_seed(1))
            updates[: clients // 2, 0] += 9
            values = cosine_matrix(updates).astype(np.float32)
            folder.write_matrix(Matrix("similarity-0", tuple(ids), values, "cosine similarity", similar=True), split)
        if finished:
            scores = [accuracy * (0.5 + 0.5 * i / clients) for i in range(clients)]
            own = {c: number for number, members in sides.items() for c in members}
            rows = [
                ClientRecord(c, own[c], f"cluster-{0 if c == NASTY else own[c]}", 9, {"loss": 0.1, "accuracy": a})
                for c, a in zip(ids, scores, strict=True)
            ]
            write_rows(folder.path / "clients.json", rows)
            summary = Summary(
                method=method,
                scenario="toy",
                model="mlp",
                seed=0,
                rounds=rounds,
                clients=clients,
                clusters=[*sides.values()],
                cluster_ids=[*sides],
                metrics={"accuracy": Spread.of(scores), "loss": Spread(mean=0.1)},
                ari=1.0,
                bytes=Bytes(1000 * clients * rounds, 1000 * clients * rounds),
                seconds=1.5,
            )
            folder.write_json("summary.json", to_json(summary))
    return path


def a_round(t, sizes, level, *, sent=0, **more):
    """A round with clusters of these sizes by id, all at one accuracy."""
    clusters = [
        ClusterRecord(number, size, None, 1 / t, 2 / t, {"accuracy": level, "loss": 1.0})
        for number, size in sizes.items()
    ]
    spread = Spread(mean=level, worst10=level / 2, best10=min(1.0, 1.1 * level))
    return RoundRecord(t, clusters, Bytes(sent, sent), 0.1, {"accuracy": spread, "loss": Spread(mean=1.0)}, **more)


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


def test_why_the_clusters_differ_is_shown_where_it_is_known(tmp_path):
    write_run(tmp_path / "run")
    assert "Why the clusters differ" not in make_report(tmp_path / "run")
    words = ["Clusters 1 and 2: the labels differ: 2 and 8 are swapped.", "  own model 97% right, the other's 59%"]
    record = ExplanationRecord([1, 2], [[0.97, 0.59], [0.58, 0.96]], False, words)
    RunFolder(tmp_path / "run").write_explanation(record)
    text = " ".join(Reader(make_report(tmp_path / "run")).text)
    assert "2 and 8 are swapped; own model 97% right" in text
    assert "Each model on the others' clients" in text


def test_a_name_from_the_data_is_text(page):
    assert NASTY not in page
    assert NASTY in "".join(Reader(page).text)


def test_the_page_says_what_the_run_found(page):
    text = " ".join("".join(Reader(page).text).replace("\u00a0", " ").split())
    assert "It found 2 clusters, of 4 and 4 clients. The split came in round 3." in text
    assert "exactly the groups that were hidden" in text
    assert "Against fedavg, 8 of 8 clients gained and 0 lost" in text
    assert "Was it worth it? Yes" in text
    assert "96 kB were sent in all, 12 kB per client. That is as much as fedavg sent." in text
    assert "split in round 3: separation 0.8, noise 0.25" in text
    assert "1 client is served by a model further up" in text


def test_figures_take_the_colour_of_the_page(page):
    assert "currentColor" in page
    assert "#7a7b7c" not in page


def test_the_same_folder_gives_the_same_bytes(page, folder):
    assert make_report(folder / "cfl") == page


def test_an_unfinished_run_has_a_report(tmp_path):
    text = make_report(write_run(tmp_path / "run", finished=False))
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


def test_clusters_keep_their_id_through_splits():
    course = cluster_series(
        [a_round(t, sizes, 0.5) for t, sizes in enumerate([{0: 9}, {1: 5, 2: 4}, {2: 4, 3: 3, 4: 2}, {4: 2, 2: 4}], 1)]
    )
    assert {
        series.cluster: (list(series.records), [record.members for record in series.records.values()])
        for series in course
    } == {
        0: ([1], [9]),
        1: ([2], [5]),
        2: ([2, 3, 4], [4, 4, 4]),
        3: ([3], [3]),
        4: ([3, 4], [2, 2]),
    }


def test_the_matrix_is_in_the_order_of_the_clusters():
    values = np.arange(25.0, dtype=np.float32).reshape(5, 5)
    matrix = Matrix("so", ("a", "b", "gone", "c", "d"), values, "so", similar=False)
    found = arranged(matrix, {"a": 7, "b": 3, "c": 7, "d": 3})
    order = [2, 1, 4, 0, 3]
    assert found.values.tolist() == values[np.ix_(order, order)].tolist()
    assert (found.clusters, found.sizes) == ([-1, 3, 7], [1, 2, 2])


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
    [found] = judged(run, [baseline])
    assert [gain for _, gain in found.gains] == sorted(gain for _, gain in found.gains)
    assert found.differences[NASTY] == pytest.approx(0.3 * 0.5)
    assert [place.name for place in find_plain(folder / "cfl", run.config)] == ["fedavg"]


def test_a_baseline_must_be_on_the_same_clients(folder, tmp_path):
    other = write_run(tmp_path / "elsewhere", method="local", data="print-2")
    with pytest.raises(RunError, match="other clients or data"):
        make_report(folder / "cfl", other)
    half = write_run(tmp_path / "half", method="local", finished=False)
    with pytest.raises(RunError, match="not finished"):
        make_report(folder / "cfl", half)
    write_run(tmp_path / "cfl")
    assert find_plain(tmp_path / "cfl", read_run(tmp_path / "cfl").config) == []
    with pytest.raises(ConfigError, match="--baseline goes with a run folder"):
        make_report(folder, other)


def test_who_gained_and_what_was_sent_in_words(folder):
    run, baseline = read_run(folder / "cfl"), read_run(folder / "fedavg")
    [found] = judged(baseline, [run])
    assert gain_words(found).startswith(
        "Against cfl, 0 of 8 clients gained and 8 lost; accuracy −21.6\u00a0points on average"
    )
    assert [size(n) for n in (12, 1500, 2.5e6, 3e9)] == ["12 bytes", "1.5 kB", "2.5 MB", "3 GB"]


def test_the_clients_table_opens_with_the_worst_client(page):
    """CFL's gain over FedAvg is least for the worst client here; order is by accuracy all the same."""
    text = page[page.index("Clients, worst first") :]
    shown = re.findall(r'<td class="number">([0-9.]+)\u00a0%</td>', text)[:8]
    assert len(shown) == 8
    assert [float(value) for value in shown] == sorted(float(value) for value in shown)
    made = [("a", 1.0, 0.1), ("b", 0.2, 0.5), ("c", 0.2, 0.9), ("gone", None, None)]
    rows = [ClientRecord(name, 0, None, 9, {"accuracy": rate, "loss": loss}) for name, rate, loss in made]
    assert [row.client for row in sorted(rows, key=worst_first)] == ["c", "b", "a", "gone"]


def test_bars_are_named_and_names_stay_on_one_line(page):
    figure = page[page.index("Each client against fedavg") :]
    figure = figure[: figure.index("</figure>")]
    assert all(f">c{i:04}<" in figure for i in range(1, 8))
    assert '<span class="id">c0007</span>' in page
    assert named("two words") == "two words"
    assert (short("a-hospital-with-a-long-name-7"), short("b")) == ("a-hospital…long-name-7", "b")


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
    assert f"{100 * summary['metrics']['accuracy']['mean']:.2f}" in text
    assert "The best of the others in detail: cfl, seed 0" in text
    rows = gain_rows(folder, read_comparison(folder))
    assert rows == [("cfl", "8", "0", "+21.6\u00a0points", "+15.0\u00a0points")]  # 0.3 (1/2 + i/16) for i = 0 … 7


def test_a_method_of_ones_own_with_any_ids_and_several_roots_is_shown_whole(tmp_path):
    """Two clusters from the start, ids that are no positions, a split without an event of that name."""
    with RunFolder.create(tmp_path / "run", {"method": "mine", "rounds": 3, "seed": 0}) as folder:
        first = dict.fromkeys(("a", "b", "e"), 5) | dict.fromkeys(("c", "d", "f"), 20)
        second, third = {"a": 7, "b": 90, "e": 90}, {"c": 91, "d": 92, "f": 92}
        splits = [SplitRecord(5, [7, 90], [["a"], ["b", "e"]]), SplitRecord(20, [91, 92], [["c"], ["d", "f"]])]
        folder.append_history(a_round(1, {5: 3, 20: 3}, 0.2, assignment=first))
        folder.append_history(a_round(2, {7: 1, 90: 2, 20: 3}, 0.3, assignment=second, splits=splits[:1]))
        folder.append_history(a_round(3, {7: 1, 90: 2, 91: 1, 92: 2}, 0.3, assignment=third, splits=splits[1:]))
    text = " ".join("".join(Reader(make_report(tmp_path / "run")).text).split())
    assert "The first split came in round 2, the last in round 3." in text
    assert "Dotted lines mark splits." in text
    for name in ("node 5 · 3", "cluster 7 · 1", "cluster 90 · 2", "node 20 · 3", "cluster 91 · 1", "cluster 92 · 2"):
        assert f"{name} clients" in text


def test_thresholds_are_drawn_as_far_as_they_are_numbers(tmp_path):
    with RunFolder.create(tmp_path / "run", {"method": "mine", "rounds": 3}) as folder:
        for t, level in enumerate((None, 0.5, 0.25), 1):
            cluster = ClusterRecord(0, 4, mean_norm=1.0, thresholds={"eps1": level, "other": None})
            folder.append_history(RoundRecord(t, [cluster], Bytes(), 0.1))
    assert thresholds(read_run(tmp_path / "run")) == {"ε1": ([2, 3], [0.5, 0.25])}
    assert "thresholds of the first cluster (ε1)" in make_report(tmp_path / "run")


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


def test_rounds_are_marked_at_whole_numbers() -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.plot(range(1, 21), range(20))
    over_rounds(axes)
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_of_very_many_clients_both_ends_are_kept_and_every_accuracy(monkeypatch):
    monkeypatch.setattr("coterie_views.report.clients.ROWS_AT_ONCE", 70)
    rows = [
        ClientRecord(f"c{i}", i % 2, "cluster-0" if i % 5 else "cluster-9", 3, {"accuracy": (i * 37 % 500) / 500})
        for i in range(500)
    ]
    found = ReportedClients.of(iter(rows))
    ordered = sorted(rows, key=worst_first)
    assert found.listed == ordered[:50] + ordered[-10:]
    assert found.scores.accuracy == {row.client: row.accuracy for row in rows}
    assert found.total == 500
    assert found.served_elsewhere == sum(row.model != f"cluster-{row.cluster}" for row in rows)
    assert ReportedClients.of(rows[:60]).listed == sorted(rows[:60], key=worst_first)
