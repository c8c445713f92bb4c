"""What is checked: a method with options under which it has something to do in a few rounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from coterie import Method
from coterie.errors import ConfigError
from coterie.methods import make_method, method_classes
from coterie_conformance.trials import GROUPS, Trial, start

SPECS: dict[str, tuple[str, ...]] = {
    "cfl": ("cfl", "cfl:rule=paper(eps1=100,eps2=0.0001,gamma_max=0.01)"),
    "clove": (f"clove:k={GROUPS}",),
    "fedcuau": ("fedcuau:clusters=2", "fedcuau:clusters=2,measure=update"),
    "fedem": ("fedem:components=2",),
    "fedrc": ("fedrc:components=2",),
    "fedsem": (f"fedsem:clusters={GROUPS}",),
    "feddrift": ("feddrift:most=4",),
    "flhc": (f"flhc:warmup_rounds=1,clusters={GROUPS}",),
    "flt": ("flt:encoder=pca,clusters=2", "flt:encoder=pca,case=1"),
    "groups": ("groups:of={'client-0':'a','client-1':'b'}",),
    "ifca": (f"ifca:k={GROUPS}", f"ifca:k={GROUPS},averaging=gradient"),
    "oneshot": (f"oneshot:k={GROUPS},warmup_rounds=1",),
    "pacfl": (f"pacfl:clusters={GROUPS}",),
    "pca-kmeans-hc": ("pca-kmeans-hc:basis=public,clusters=2",),
}
"""The options by which a built-in method is checked; the others are checked as they are."""

TRAINS_OTHERS = {"fedcuau"}
"""Methods in which clients of one cluster train models of others by design: shared layers, or a graph."""
RANKS_DIFFERENCES = {"fedcuau"}
"""Methods whose clusters are percentiles of how far a client's update is from the mean one."""


@dataclass(frozen=True)
class Subject:
    """A method to be checked, and what is special about it by design."""

    name: str
    """The method with its options, as in `coterie run --method`."""
    method: Method
    trains_others: bool = False
    """Clients of one cluster train models of others by design (shared layers, a graph of relatives)."""
    ranks_differences: bool = False
    """Its clusters are percentiles of how far a client's update is from the mean one."""
    rounds: int = 4
    """Rounds of a trial."""

    @cached_property
    def plain(self) -> Trial:
        """A trial as it is, done once for all the checks that look at one."""
        return start(self.method).rounds(self.rounds)


def subject_of(spec: str) -> Subject:
    """The method written as `name` or `name:key=value,…`, ready to be checked."""
    name = spec.partition(":")[0]
    return Subject(spec, make_method(spec), name in TRAINS_OTHERS, name in RANKS_DIFFERENCES)


def find_subjects(specs: tuple[str, ...] = ()) -> list[Subject]:
    """The methods that are named, a bare name with the options of SPECS; by default all that are known."""
    named = specs or tuple(sorted(method_classes()))
    written = [full for spec in named for full in (SPECS.get(spec, (spec,)) if ":" not in spec else (spec,))]
    return [subject_of(spec) for spec in written]


def missing_part(subject: Subject) -> str | None:
    """What has to be installed before the method can run here at all, or None."""
    try:
        start(subject.method)
    except ConfigError as problem:
        if "pip install" in str(problem):
            return str(problem)
    return None
