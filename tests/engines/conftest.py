"""What the engines' tests share."""

from __future__ import annotations

import pytest

from coterie.engines import local


@pytest.fixture
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide work among workers however little there is: the tests' federations are small."""
    monkeypatch.setattr(local, "WORK_FOR_BLOCK", 1)
