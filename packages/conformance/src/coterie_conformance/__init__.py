"""Checks that tell a right implementation of a clustered method from a wrong one, and what slips do to a result."""

# The checks register themselves, in the order in which they are told of.
from coterie_conformance import check_clusters, check_models, check_means, check_runs  # noqa: F401, I001
from coterie_conformance.checking import CHECKS, Check, DoesNotApply, Failed, Finding, check, check_method, run_check
from coterie_conformance.subjects import Subject, find_subjects, subject_of

__all__ = [
    "CHECKS",
    "Check",
    "DoesNotApply",
    "Failed",
    "Finding",
    "Subject",
    "check",
    "check_method",
    "find_subjects",
    "run_check",
    "subject_of",
]
