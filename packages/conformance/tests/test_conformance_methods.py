"""Every method of Coterie passes the checks that apply to it."""

from __future__ import annotations

import pytest

from coterie.methods import method_classes
from coterie_conformance import CHECKS, Subject, check_method, find_subjects

OURS = [subject for subject in find_subjects() if type(subject.method).__module__.startswith("coterie.")]


@pytest.mark.parametrize("subject", OURS, ids=lambda subject: subject.name[:40])
def test_a_method_conforms(subject: Subject) -> None:
    findings = check_method(subject)
    assert [f"{finding.check}: {finding.text}" for finding in findings if finding.verdict == "fails"] == []
    assert len([finding for finding in findings if finding.verdict == "ok"]) >= len(CHECKS) // 2


def test_every_method_is_here() -> None:
    ours = {name for name, cls in method_classes().items() if cls.__module__.startswith("coterie.")}
    assert {subject.name.partition(":")[0] for subject in OURS} == ours


def test_every_check_applies_to_some_method() -> None:
    """Or it would be a check that cannot fail. The subjects are those on which each is known to apply."""
    by_name = {subject.name: subject for subject in OURS}
    somebody = {
        "tree": "cfl:min_rounds=1,patience=1,gamma_max=0.01,eps1=100,eps2=0.0001",
        "bipartition": "cfl:min_rounds=1,patience=1,gamma_max=0.01,eps1=100,eps2=0.0001",
        "signs": "pacfl:clusters=4",
        "common part": "fedcuau:clusters=2,measure=update",
    }
    for check in CHECKS:
        [finding] = check_method(by_name[somebody.get(check, "clove:k=4")], [check])
        assert finding.verdict == "ok", finding
