"""Each slip of public code is found by the check that is named for it, which the double without the slip passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie_conformance import CHECKS, check_method
from coterie_conformance.doubles_cfl import PlainCFL, labels_of, lost_and_doubled
from coterie_conformance.doubles_flt import PlainFLT
from coterie_conformance.doubles_others import PlainPACFL
from coterie_conformance.slips import SLIPS, Slip
from coterie_conformance.study import mean_and_error, measure_slips
from coterie_conformance.trials import start

RIGHT = {slip.method: slip for slip in SLIPS}


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_a_slip_is_found_and_the_right_double_passes(slip: Slip) -> None:
    [wrong] = check_method(slip.subject(slipped=True), [slip.check])
    [right] = check_method(slip.subject(slipped=False), [slip.check])
    assert (wrong.verdict, right.verdict) == ("fails", "ok"), (wrong, right)


@pytest.mark.parametrize("slip", RIGHT.values(), ids=lambda slip: slip.method)
def test_a_double_without_its_slip_conforms(slip: Slip) -> None:
    findings = check_method(
        slip.subject(slipped=False), [name for name in CHECKS if name not in ("repeats", "resumes")]
    )
    assert [finding for finding in findings if finding.verdict == "fails"] == []


def test_a_state_outside_of_the_state_is_found() -> None:
    """The checks of whole runs, on a method that counts its rounds in a list of its own."""

    class Forgetful(PlainPACFL):
        def round(self, state, t, server):  # type: ignore[no-untyped-def]
            seen.append(t)
            models = state.models + 0.001 * len(seen)
            return super().round(type(state)(models, state.cluster_of), t, server)

    seen: list[int] = []
    subject = type(RIGHT["pacfl"].subject(slipped=False))("forgetful", Forgetful())
    verdicts = {
        finding.check: finding.verdict for finding in check_method(subject, ["repeats", "resumes", "partition"])
    }
    assert verdicts == {"repeats": "fails", "resumes": "fails", "partition": "ok"}


def test_positions_as_ids_lose_clients_from_the_second_split_on() -> None:
    """By hand: a child of three is split, and its halves become clients 0 to 2 of all."""
    right, wrong = (start(PlainCFL(slip, gamma_max=0.01), rounds=3).rounds(1) for slip in ("none", "positions"))
    assert right.state.clusters == wrong.state.clusters  # the first split is right
    assert lost_and_doubled(wrong.rounds(1).state) != (0, 0)
    assert lost_and_doubled(right.rounds(2).state) == (0, 0)
    assert set(labels_of(right.state)) == set(right.state.clusters)


def test_means_in_place_are_those_of_gauss_and_seidel() -> None:
    """By hand, two relatives of weight one: (1 + 3) / 2 = 2, and then (2 + 3) / 2 = 2.5 in place of 2."""
    trained, before = torch.tensor([[1.0], [3.0]]).double(), torch.zeros(2, 1).double()
    everybody, both, samples = np.ones((2, 2), dtype=bool), np.ones(2, dtype=bool), np.ones(2)
    right = PlainFLT()._averaged(trained.clone(), before, everybody, both, samples)
    wrong = PlainFLT("in place")._averaged(trained.clone(), before, everybody, both, samples)
    shrunk = PlainFLT("p/‖A‖₀")._averaged(trained.clone(), before, everybody, both, samples)
    assert (right.flatten().tolist(), wrong.flatten().tolist()) == ([2.0, 2.0], [2.0, 2.5])
    assert shrunk.flatten().tolist() == [1.0, 1.0]


def test_the_angle_of_a_vector_with_itself_turned_around() -> None:
    one = np.array([[1.0, 0.0, 0.0]])
    assert PlainPACFL().angle(one, -one) == pytest.approx(0.0)
    assert PlainPACFL("entrywise arccos").angle(one, -one) == pytest.approx(180.0)


def test_the_study_resumes_from_its_cells(tmp_path: Path) -> None:
    [slip] = [slip for slip in SLIPS if slip.name == "entrywise arccos"]
    short = type(slip)(**vars(slip) | {"where": (slip.where[1] | {"rounds": 1, "clients": 8},)})
    done: list[str] = []
    [first] = measure_slips(tmp_path, [0, 1], [short], done.append)
    assert len(done) == 4
    assert measure_slips(tmp_path, [0, 1], [short], done.append) == [first]
    assert len(done) == 4
    assert first["difference"]["accuracy"][0] == pytest.approx(
        first["wrong"]["accuracy"][0] - first["right"]["accuracy"][0], abs=2e-4
    )
    assert mean_and_error([1.0, 3.0]) == [2.0, 1.0]
