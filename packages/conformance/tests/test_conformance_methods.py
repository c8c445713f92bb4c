"""Every method of Coterie passes the checks that apply to it."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from coterie.methods import Task, base, method_classes
from coterie_conformance import CHECKS, Subject, check_method, find_subjects

OURS = [
    subject for subject in find_subjects() if type(subject.method).__module__.startswith(("coterie.", "coterie_field."))
]


@pytest.mark.parametrize("subject", OURS, ids=lambda subject: subject.name[:40])
def test_a_method_conforms(subject: Subject) -> None:
    findings = check_method(subject)
    assert [f"{finding.check}: {finding.text}" for finding in findings if finding.verdict == "fails"] == []
    assert len([finding for finding in findings if finding.verdict == "ok"]) >= len(CHECKS) // 2


def test_the_method_of_another_package_in_the_manual_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "methods.md").read_text(encoding="utf-8")
    printed = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert printed is not None
    module = types.ModuleType("angles")
    monkeypatch.setitem(sys.modules, "angles", module)  # where dataclasses look names up
    monkeypatch.setattr(base, "_METHODS", dict(base._METHODS))
    monkeypatch.setattr(Task, "kinds", dict(Task.kinds))
    exec(compile(printed[1], "angles", "exec"), module.__dict__)
    findings = {
        f.check: f for f in check_method(Subject("angles", module.Angles(clusters=4)), ["signs", "weights", "twins"])
    }
    assert {finding.verdict for finding in findings.values()} == {"ok"}, findings


def test_every_method_is_here() -> None:
    ours = {name for name, cls in method_classes().items() if cls.__module__.startswith(("coterie.", "coterie_field."))}
    assert {subject.name.partition(":")[0] for subject in OURS} == ours


def test_every_check_applies_to_some_method() -> None:
    """Or it would be a check that cannot fail. The subjects are those on which each is known to apply."""
    by_name = {subject.name: subject for subject in OURS}
    somebody = {
        "tree": "cfl:rule=paper(eps1=100,eps2=0.0001,gamma_max=0.01)",
        "bipartition": "cfl:rule=paper(eps1=100,eps2=0.0001,gamma_max=0.01)",
        "signs": "pacfl:clusters=4",
        "common part": "fedcuau:clusters=2,measure=update",
    }
    for check in CHECKS:
        [finding] = check_method(by_name[somebody.get(check, "clove:k=4")], [check])
        assert finding.verdict == "ok", finding
