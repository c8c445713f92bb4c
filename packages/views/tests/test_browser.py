"""The live page in a real Chromium: during a run, on two runs at once, on a large one, small and dark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsing import Visit, needs_chromium
from coterie.runs.folder import RunFolder
from coterie.runs.records import Bytes, ClusterRecord, EventRecord, RoundRecord, SplitRecord, Spread
from made_runs import Serve, Write, client, record

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SLOW_RUN = """
import sys, time
import coterie

class Slow:
    def on_start(self, run, done): pass
    def on_event(self, t, event): pass
    def on_round(self, record): time.sleep(0.1)
    def on_end(self, result): pass

rule = "paper(eps1=100,eps2=1e-9,gamma_max=0.3,wait=30)"
coterie.run(f"cfl:rule={rule}", scenario="digits-permuted", rounds=38, out=sys.argv[1], callbacks=[Slow()])
"""

pytestmark = [pytest.mark.long, needs_chromium]


def cells(page: Page, column: int) -> list[str]:
    return page.locator(f"tbody tr td:nth-child({column})").all_inner_texts()


def test_a_run_is_followed_from_its_first_rounds_to_its_end(
    tmp_path: Path, serve: Serve, browser: Browser, write_run: Write
) -> None:
    rows = [client(f"c{i}", accuracy=i / 10) for i in (3, 1, 2)]
    write_run(tmp_path / "earlier", [record(t) for t in range(1, 9)], clients=rows, method="fedavg")
    run = subprocess.Popen(
        [sys.executable, "-c", SLOW_RUN, str(tmp_path / "now")], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        with serve(tmp_path) as address:
            visit = Visit(browser, address)
            page = visit.page
            page.locator(".run[data-run=now] .open").click(timeout=60_000)
            now = page.locator(".pane[data-run=now]")
            now.locator(".curves path.curve").first.wait_for(timeout=60_000)
            assert now.locator("header .status").inner_text() == "running"
            seen = {now.locator(".facts dd").first.inner_text()}
            assert now.locator(".tree rect").count() == 0
            deadline = time.monotonic() + 30
            while len(seen) < 4 and time.monotonic() < deadline:
                page.wait_for_timeout(100)
                seen.add(now.locator(".facts dd").first.inner_text())
            assert len(seen) >= 4

            now.locator(".tree rect[data-node='2']").wait_for(timeout=60_000)
            assert now.locator("header .status").inner_text() == "running"
            assert now.locator(".curves line.split").count() >= 1
            assert "splits into" in now.locator(".events li").last.inner_text()
            now.locator("tbody tr").first.wait_for(timeout=15_000)
            now.locator("[data-key=cluster]").click()
            clusters = [int(text) for text in cells(page, 2)]
            assert clusters == sorted(clusters)
            assert len(clusters) == 20

            page.locator(".run[data-run=earlier] .beside").click()
            earlier = page.locator(".pane[data-run=earlier]")
            earlier.locator(".curves path.curve").wait_for()
            assert page.locator(".pane").count() == 2
            earlier.locator("[data-key=accuracy]").click()
            assert earlier.locator("tbody td:first-child").all_inner_texts() == ["c1", "c2", "c3"]
            earlier.locator("[data-key=accuracy]").click()
            assert earlier.locator("tbody td:first-child").all_inner_texts() == ["c3", "c2", "c1"]

            now.locator("header .status.finished").wait_for(timeout=60_000)
            assert now.locator(".facts dd").first.inner_text() == "38 / 38"
            now.locator("[data-key=accuracy]").wait_for()
            shutil.rmtree(tmp_path / "earlier")
            earlier.locator(".status.gone").wait_for()
            page.locator(".run[data-run=earlier]").wait_for(state="detached")
            visit.leave()
        assert run.wait(10) == 0
    finally:
        run.kill()
        run.wait()


@pytest.fixture
def evil(tmp_path: Path, write_run: Write) -> Path:
    """A run with a split whose names would be code if they were not text."""
    event = EventRecord("split", "<img src=x onerror=alert(1)>")
    split = SplitRecord(0, [1, 2], [["<script>alert(1)</script>"], ["b"]], {"separation": 0.9, "<u>": None})
    history = [record(1), record(2), record(3, [1, 2], [event], splits=[split]), record(4, [1, 2])]
    rows = [client("<script>alert(1)</script>", 1), client("b", 2, accuracy=None)]
    write_run(tmp_path / "<b>run", history, clients=rows, scenario="<i>toy</i>", model="'\"><u>")
    return tmp_path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_readable_in_every_shape_and_every_name_is_text(
    width: int, scheme: str, evil: Path, serve: Serve, browser: Browser
) -> None:
    with serve(evil) as address:
        visit = Visit(browser, address, width, scheme)
        page = visit.page
        page.locator("tbody tr").first.wait_for()
        page.locator(".tree rect").first.wait_for()
        assert page.locator("h2").inner_text() == "<b>run"
        assert cells(page, 1) == ["<script>alert(1)</script>", "b"]
        assert page.locator(".events li").inner_text().endswith("<img src=x onerror=alert(1)>")
        assert page.locator("img, b b, i i, u, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        ink, card = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.querySelector('.card')).backgroundColor]"
        )
        assert contrast(ink, card) > 7
        assert (brightness(card) > 0.5) == (scheme == "light")
        small = page.evaluate(
            "[...document.querySelectorAll('svg text, td, dt')].map(n => parseFloat(getComputedStyle(n).fontSize))"
        )
        assert min(small) >= 11
        visit.leave()


def test_a_resumed_run_and_a_restarted_server(evil: Path, serve: Serve, browser: Browser) -> None:
    (evil / "<b>run" / "summary.json").unlink()
    with serve(evil) as address:
        visit = Visit(browser, address)
        page = visit.page
        page.locator(".tree rect").first.wait_for()
        RunFolder(evil / "<b>run").rewind_history(2)
        page.locator(".tree").wait_for(state="hidden")
        assert page.locator(".facts dd").first.inner_text() == "2 / 4"
        assert page.locator(".curves line.split").count() == 0
        assert visit.complaints == []
    page.locator("#connection.lost").wait_for()
    with serve(evil, port=int(address.rpartition(":")[2])):
        page.locator("#connection:not(.lost)").wait_for(timeout=15_000)
        with RunFolder.open(evil / "<b>run") as folder:
            folder.rewind_history(2)
            folder.append_history(record(3))
            page.locator(".facts dd", has_text="3 / 4").wait_for()
    visit.context.close()


def test_a_tree_of_any_ids_and_roots_is_drawn_and_silent_rounds_leave_no_gap(
    tmp_path: Path, serve: Serve, browser: Browser, write_run: Write
) -> None:
    """A method of one's own: ids that are no positions, two clusters from the start, no event, no evaluation."""
    silent = RoundRecord(2, [ClusterRecord(i, 5) for i in (5, 20)], Bytes(), 0.1)
    split = SplitRecord(5, [7, 90], [["a"], ["b"]], {"separation": 0.9})
    with serve(tmp_path) as address:
        visit = Visit(browser, address)
        page = visit.page
        page.locator("#hint", has_text="coterie run --out").wait_for()
        assert page.locator(".run").count() == 0
        write_run(tmp_path, [record(1, [5, 20]), silent, record(3, [7, 90, 20], splits=[split])], rounds=9)
        page.locator(".tree rect").first.wait_for()
        assert page.locator("#hint").is_hidden()
        assert page.locator(".curves text.axis").all_text_contents() == ["round", "accuracy, %"]
        assert page.locator(".tree text.axis").all_text_contents() == ["round"]
        assert page.evaluate("[...document.querySelectorAll('.tree rect')].map(bar => bar.dataset.node)") == [
            "5", "7", "20", "90",
        ]  # fmt: skip
        levels = page.evaluate("[...document.querySelectorAll('.tree rect')].map(bar => bar.getAttribute('y'))")
        assert len(set(levels)) == 4
        assert page.locator(".curves line.split").get_attribute("data-round") == "3"
        assert page.locator(".curves path.curve[data-cluster='20']").get_attribute("d").count("L") == 1
        assert "NaN" not in page.locator(".curves").inner_html() + page.locator(".tree").inner_html()
        visit.leave()


def test_any_metric_of_the_run_can_be_drawn(tmp_path: Path, serve: Serve, browser: Browser, write_run: Write) -> None:
    """A regression whose r2 is below 0 at first: the picture begins at its lowest value."""

    def measured(t: int, r2: float) -> RoundRecord:
        means: dict[str, float | None] = {"loss": 1 - r2, "r2": r2}
        return RoundRecord(
            t, [ClusterRecord(0, 5, metrics=means)], Bytes(), 0.1, {name: Spread(mean=v) for name, v in means.items()}
        )

    write_run(tmp_path / "run", [measured(1, -3.0), measured(2, 0.5)], rounds=2)
    with serve(tmp_path) as address:
        visit = Visit(browser, address)
        page = visit.page
        choice = page.locator(".curves .measure")
        choice.locator("option").nth(1).wait_for(state="attached")
        assert choice.locator("option").all_text_contents() == ["loss", "r2"]
        choice.select_option("r2")
        assert page.locator(".curves h3").text_content() == "R2 over rounds"
        ticks = page.locator(".curves text[text-anchor=end]").all_text_contents()
        assert (ticks[0], ticks[-1]) == ("-3.00", "0.500")
        d = page.locator(".curves path.curve").get_attribute("d") or ""
        first, last = (float(spot.split()[1]) for spot in d[1:].split("L"))
        assert first > last > 0
        visit.leave()


def test_large_losses_fit_beside_their_axis_and_a_regression_has_no_column_of_accuracies(
    tmp_path: Path, serve: Serve, browser: Browser, write_run: Write
) -> None:
    loss = 11_471_738.0
    only = RoundRecord(1, [ClusterRecord(0, 1, metrics={"loss": loss})], Bytes(), 0.1, {"loss": Spread(mean=loss)})
    write_run(tmp_path / "run", [only], [client("a", accuracy=None, loss=loss)])
    with serve(tmp_path) as address:
        visit = Visit(browser, address)
        page = visit.page
        page.locator(".clients tbody tr").wait_for()
        assert "accuracy" not in (page.locator(".clients thead").text_content() or "")
        assert page.locator(".curves text[text-anchor=end]").all_text_contents()[-1] == "1.15e+7"
        visit.leave()


def brightness(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`."""
    parts = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 to 21."""
    low, high = sorted((brightness(a), brightness(b)))
    return (high + 0.05) / (low + 0.05)


def test_a_large_run_stays_responsive(tmp_path: Path, serve: Serve, browser: Browser, write_run: Write) -> None:
    from playwright.sync_api import expect  # not above: the module is collected where there is no playwright

    rows = [client(f"client-{i:04d}", i % 8, (i * 37 % 2400) / 2400) for i in range(2400)]
    write_run(tmp_path / "wide", [record(t, 8, members=300) for t in range(1, 101)], clients=rows, method="ifca")
    write_run(tmp_path / "long", [record(t, 8) for t in range(1, 4001)], method="ifca")
    with serve(tmp_path) as address:
        visit = Visit(browser, f"{address}/#run=wide")
        page = visit.page
        page.locator("tbody tr").first.wait_for()
        assert page.evaluate("performance.now()") < 30_000  # minutes if it drew every client
        assert page.locator("tbody tr").count() == 200
        page.locator("[data-key=accuracy]").click()
        spent = page.evaluate(
            "() => { const t = performance.now(); document.querySelector('[data-key=accuracy]').click();"
            " document.body.offsetHeight; return performance.now() - t; }"
        )
        assert spent < 5000
        assert page.locator("tbody td:nth-child(3)").first.inner_text() == "100.0 %"
        page.locator(".clients input").fill("2399")
        assert cells(page, 1) == ["client-2399"]
        page.locator(".clients input").fill("")
        page.locator(".more button").click()
        assert page.locator("tbody tr").count() == 400

        page.locator(".run[data-run=long] .open").click()
        page.locator(".pane[data-run=long] path.curve").first.wait_for()
        points = page.evaluate("document.querySelector('path.curve').getAttribute('d').split('L').length")
        assert 100 < points <= 410

        # Many runs in one picture: a line per setting, a band where it has several seeds; newest first in the list.
        for i, (name, seed) in enumerate([("a", 0), ("b", 1), ("c", 0)]):
            course = [record(t) for t in range(1, 4 + 2 * i)]
            os.utime(write_run(tmp_path / name, course, method="flt" if name == "c" else "fedavg", rounds=9, seed=seed)
                     / "config.json", (2e9 + i, 2e9 + i))  # fmt: skip
        page.locator(".run[data-run=c]").wait_for()
        expect(page.locator(".run")).to_have_count(5, timeout=60_000)
        assert page.evaluate("[...document.querySelectorAll('.run')].map(run => run.dataset.run)")[:3] == [
            "c",
            "b",
            "a",
        ]
        page.locator("#all").click()
        page.locator("#overlay path.curve").nth(3).wait_for()
        assert page.locator("#overlay path.curve").count() == 4
        assert page.locator("#overlay path.band").count() == 1
        assert page.locator(".pane").count() == 0
        told = page.locator("#overlay .legend li").all_inner_texts()
        assert [text for text in told if ", 2 seeds: 83.3 %" in text and text.startswith("fedavg")]
        assert page.locator("#overlay text.axis").all_text_contents() == ["round", "accuracy, %"]
        page.locator("#overlay .measure").select_option("loss")
        assert page.locator("#overlay text.axis").all_text_contents() == ["round", "loss"]
        page.locator(".run[data-run=long] .beside").click()
        expect(page.locator("#overlay path.curve")).to_have_count(3, timeout=60_000)
        visit.leave()
