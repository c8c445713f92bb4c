"""The report in a real Chromium: from disk, with the network off, wide and narrow, light and dark, large and small."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import coterie
from browsing import Visit, needs_chromium
from coterie_views.report import write_report
from test_report import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.long, needs_chromium]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a real run that split."""
    folder = tmp_path_factory.mktemp("real") / "run"
    coterie.run("cfl", scenario="digits-permuted", clients=8, groups=2, rounds=40, out=folder)
    return write_report(folder, folder.parent / "report.html")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_readable_in_every_shape_with_the_network_off(
    report: Path,
    browser: Browser,
    width: int,
    scheme: str,
) -> None:
    visit = Visit(browser, "about:blank", width, scheme)
    visit.context.set_offline(True)
    visit.page.goto(report.as_uri())
    page = visit.page
    assert page.locator("svg").count() >= 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor"))
    light = [sum(int(v) for v in colour.strip("rgba()").split(",")[:3]) for colour in (ink, paper)]
    assert abs(light[0] - light[1]) > 300
    assert (light[1] > light[0]) == (scheme == "light")
    lines = page.evaluate("[...document.querySelectorAll('.id')].map(name => name.getClientRects().length)")
    assert len(lines) > 16
    assert set(lines) == {1}
    # No name of a figure reaches over its edge, where it would be cut off.
    cut = page.evaluate(
        "[...document.querySelectorAll('figure')].flatMap(figure => { const edge = figure.getBoundingClientRect();"
        " return [...figure.querySelectorAll('text')].filter(text => { const box = text.getBoundingClientRect();"
        " return box.left < edge.left || box.right > edge.right; }).map(text => text.textContent); })"
    )
    assert cut == []
    visit.leave()


def test_thousands_of_clients_open_quickly(tmp_path: Path, browser: Browser) -> None:
    """It takes half a second on an idle machine; the page itself must not grow with the clients."""
    write_run(tmp_path / "cfl", clients=2400, rounds=100, split=40)
    target = write_report(tmp_path / "cfl", tmp_path / "report.html")
    visit = Visit(browser, "about:blank")
    visit.page.goto(target.as_uri(), timeout=20_000)
    visit.page.locator("svg").first.wait_for(timeout=20_000)
    assert 100 < visit.page.evaluate("document.querySelectorAll('*').length") < 2400
    visit.leave()
