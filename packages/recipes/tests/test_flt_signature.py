"""The recipe on FLT's signature: counts add up, and the table has every size and every federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import FLT, Federation
from coterie_recipes import flt_signature
from coterie_recipes.base import Study


def test_centroids_that_are_samples_are_traced_to_their_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_codes(federation: Federation, method: FLT, seed: int) -> dict[int, Any]:
        encoder = flt_signature.load_encoder("default")
        return {i: encoder.encode(federation[c].train.x[:2]).numpy() for i, c in enumerate(federation.ids)}

    monkeypatch.setattr(flt_signature, "signatures", first_codes)
    found = flt_signature.attack("digits", 10, 10, "words", 0, None)
    assert (found["own"], found["centroids"]) == (40, 40)
    # A twin's samples are among the candidates, so each is its own nearest.
    assert (found["control"], found["control centroids"]) == (0, 40)


def test_centroids_anywhere_are_nearest_to_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def anywhere(federation: Federation, method: FLT, seed: int) -> dict[int, Any]:
        generator = np.random.default_rng(0)
        return {i: generator.standard_normal((5, 64)).astype(np.float32) for i in range(len(federation.ids))}

    monkeypatch.setattr(flt_signature, "signatures", anywhere)
    found = flt_signature.attack("digits", 10, 10, "words", 0, None)
    assert (found["centroids"], found["control centroids"]) == (100, 100)
    assert max(found["own"], found["control"]) <= 6  # one of a hundred by chance


def test_the_advantage_is_a_difference_of_shares_with_its_interval() -> None:
    """By hand: 30 of 100 against 10 of 100; with one more of each, 31/102 and 11/102."""
    cell = {"own": 30, "centroids": 100, "control": 10, "control centroids": 100}
    value, error = flt_signature.advantage([cell])
    assert value == pytest.approx(0.2)
    assert error == pytest.approx(1.96 * np.sqrt(0.3039 * 0.6961 / 102 + 0.1078 * 0.8922 / 102), abs=1e-4)
    none = {"own": 0, "centroids": 50, "control": 0, "control centroids": 50}
    assert flt_signature.advantage([none])[1] > 0


def test_the_table_has_every_signature_and_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(self: Study, jobs: dict[str, Any]) -> dict[str, Any]:
        hits = {"own": 1, "centroids": 50, "control": 3, "control centroids": 60}
        return {name: hits if name.startswith("attack") else {"ari": 0.5} for name in jobs}

    monkeypatch.setattr(Study, "cells", cells)
    found = flt_signature.flt_signature(Study(tmp_path))
    rows = {(row.setting, row.measure): row.ours for row in found.rows}
    assert rows["words: mnist, 100 samples, 2 classes", flt_signature.OWN] == [2.0]
    assert rows["words: mnist, 100 samples, 2 classes", flt_signature.CONTROL] == [5.0]
    assert rows["words: 24 federations", "groups found, given their number, %"] == [0.0]
    # 18 settings of one seed: 18 of 900 and 54 of 1,080; (19/902, 55/1082) give ± 1.6
    assert (
        "words: below 5 % in 18 of 18 settings, at most 2.0 % (digits, 10 samples, 10 classes); all together "
        "-3.0 points more than to a twin's, 95 % interval ± 1.6."
    ) in found.notes
    assert sum(note.startswith("miss with words") for note in found.notes) == 24
