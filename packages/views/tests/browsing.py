"""A real Chromium for tests, and visits that remember everything the browser complained of."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")


class Visit:
    """A page that remembers everything the browser complained of."""

    def __init__(self, browser: Browser, address: str, width: int = 1280, scheme: Any = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.page.goto(address)

    def leave(self) -> None:
        """Close the page; nothing may have gone wrong on it."""
        self.context.close()
        assert self.complaints == []
