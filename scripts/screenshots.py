"""Make the pictures in docs/images from real runs: the live page during and after a run, and the report.

Needs coterie[dev] and a Chromium. Run it from anywhere: python scripts/screenshots.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
]
COTERIE = [sys.executable, "-c", "from coterie.cli import main; main()"]
SCENARIO = ["--scenario", "digits-permuted", "--rounds", "40", "--quiet"]
BASELINE = Path("compared", "fedavg", "seed-0")
"""A run on the clients of the run that is shown."""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def coterie(*words: str) -> None:
    """Run the command to its end."""
    subprocess.run([*COTERIE, *words], check=True, env=ENVIRONMENT)


@contextlib.contextmanager
def background(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the command beside this one; it is ended with the block."""
    process = subprocess.Popen([*COTERIE, *words], env=ENVIRONMENT, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def page(browser: Browser, address: str, width: int, height: int, scheme: Any) -> Iterator[Page]:
    """An open page of a given size and colour scheme."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened = context.new_page()
    opened.goto(address)
    yield opened
    context.close()


def live_pictures(browser: Browser, runs: Path) -> None:
    """The live page: a run after its splits, two runs side by side, many in one picture, and a telephone at night."""
    with background("serve", str(runs), "--port", "0", stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+/", server.stdout.readline())
        assert found, "coterie serve printed no address"
        address = found.group()
        with (
            background("run", "--method", "cfl", "--out", str(runs / "cfl"), *SCENARIO) as run,
            page(browser, address, 1280, 960, "light") as shown,
        ):
            shown.locator(".run[data-run=cfl] .open").click(timeout=120_000)
            shown.locator(".tree rect[data-node='4']").wait_for(timeout=300_000)
            shown.wait_for_timeout(1500)
            shown.screenshot(path=IMAGES / "live.png")
            if run.wait():
                raise SystemExit("the run failed")
        beside = quote(str(BASELINE), safe="")
        with page(browser, f"{address}#run=cfl&run={beside}", 1280, 1100, "dark") as shown:
            shown.locator(f".pane[data-run='{BASELINE}'] tbody tr").first.wait_for()
            shown.locator(".pane[data-run=cfl] tbody tr").first.wait_for()
            shown.locator("#overlay path.curve").nth(1).wait_for()
            shown.screenshot(path=IMAGES / "live-side-by-side.png")
        with page(browser, f"{address}#run=cfl", 1280, 700, "light") as shown:
            shown.locator("#all").click()
            shown.locator("#overlay path.curve").nth(2).wait_for()
            shown.screenshot(path=IMAGES / "live-many.png")
        with page(browser, f"{address}#run=cfl", 390, 844, "dark") as shown:
            shown.locator("tbody tr").first.wait_for()
            shown.screenshot(path=IMAGES / "live-narrow.png", full_page=True)


def report_pictures(browser: Browser, runs: Path) -> None:
    """The reports of the same run and of the comparison, read from disk."""
    report = runs / "report.html"
    coterie("report", str(runs / "cfl"), "--out", str(report), "--baseline", str(runs / BASELINE))
    with page(browser, report.as_uri(), 1280, 1400, "light") as shown:
        shown.screenshot(path=IMAGES / "report.png")
    with page(browser, report.as_uri(), 390, 1600, "dark") as shown:
        shown.locator("h2", has_text="Clients, worst first").scroll_into_view_if_needed()
        shown.screenshot(path=IMAGES / "report-narrow.png")
    coterie("report", str(runs / "compared"), "--out", str(report))
    with page(browser, report.as_uri(), 1280, 1250, "light") as shown:
        shown.screenshot(path=IMAGES / "report-comparison.png")


def main() -> None:
    """Make every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    arguments = parser.parse_args()
    if not arguments.chromium:
        parser.error("no chromium found: install one, or name it with --chromium")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        runs = Path(place)
        methods = ["--methods", "fedavg,ifca:k=4,local", "--seeds", "3", "--baseline", "fedavg"]
        coterie("compare", *methods, "--out", str(runs / "compared"), *SCENARIO)
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=FLAGS)
        live_pictures(browser, runs)
        report_pictures(browser, runs)
        browser.close()
    for picture in sorted(IMAGES.glob("*.png")):
        print(f"{picture.name}: {picture.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
