"""Settings for every test: one thread, reproducible hypothesis runs, no data folder of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

from browsing import CHROMIUM, FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

torch.set_num_threads(1)
hypothesis.settings.register_profile("coterie", deadline=None, max_examples=50, derandomize=True, database=None)
hypothesis.settings.load_profile("coterie")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a file."""
    api = pytest.importorskip("playwright.sync_api", reason="needs coterie[dev] for playwright")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
