"""The slips of public code: where each is, the double that has it, the check that finds it, and its study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie import Method
from coterie_conformance.doubles_cfl import PlainCFL
from coterie_conformance.doubles_flt import PlainFLT
from coterie_conformance.doubles_others import PlainCUAU, PlainIFCA, PlainPACFL
from coterie_conformance.subjects import Subject

ROTATED: dict[str, Any] = {"scenario": "digits-rotated", "clients": 20, "groups": 4, "samples": 60, "rounds": 30}
PERMUTED: dict[str, Any] = {"scenario": "digits-permuted", "clients": 20, "groups": 4, "samples": 60, "rounds": 60}
TWO_CLASSES: dict[str, Any] = {"scenario": "flt-s1-digits", "clients": 20, "rounds": 30}
SPLITTING: dict[str, Any] = {"min_rounds": 10, "patience": 10, "gamma_max": 0.7}
"""When the double of CFL splits in the study: of 0.45 to 0.8, 0.7 had the highest accuracy without a slip on seeds 10
and 11, with 5 and 6 clusters for 4 groups; with 0.75 some federations are never split."""


@dataclass(frozen=True)
class Slip:
    """A slip of public code."""

    name: str
    method: str
    """The method that it is a slip of."""
    what: str
    """What the code does, in place of what."""
    source: str
    """Where it can be read."""
    check: str
    """The check that finds it."""
    double: Callable[[bool], Method]
    """The method with the slip, or without, in the checks."""
    measured: Callable[[bool], Method]
    """The same with the options of the study."""
    where: tuple[dict[str, Any], ...]
    """The federations, rounds and options of the study; `centred` takes the mean input from all inputs."""
    trains_others: bool = False
    ranks_differences: bool = False

    def subject(self, slipped: bool) -> Subject:
        """What the checks look at, with the slip or without."""
        name = f"{self.method} with {self.name}" if slipped else f"{self.method} without {self.name}"
        return Subject(name, self.double(slipped), self.trains_others, self.ranks_differences)


SLIPS = [
    Slip(
        "positions as ids",
        "cfl",
        "the children of a split are positions in the parent cluster, and are taken for numbers of clients",
        "felisat/clustered-federated-learning, the authors' notebook, where cluster_indices_new grows by c1 and c2; "
        "copies in MMorafah/PACFL main_cfl.py, KarhouTam/FL-bench src/server/cfl.py, omarfoq/FedEM and LINs-lab/FedRC "
        "aggregator.py, and by an earlier reading in FedGMM and FedZoo-Bench",
        "tree",
        lambda on: PlainCFL("positions" if on else "none", gamma_max=0.01),
        lambda on: PlainCFL("positions" if on else "none", **SPLITTING),
        (PERMUTED,),
    ),
    Slip(
        "complete linkage",
        "cfl",
        "a cluster is cut in two by complete linkage, which is not the cut with the lowest largest cosine across",
        "felisat/clustered-federated-learning fl_devices.py, cluster_clients; and its copies",
        "bipartition",
        lambda on: PlainCFL("complete linkage" if on else "none", gamma_max=0.01),
        lambda on: PlainCFL("complete linkage" if on else "none", **SPLITTING),
        (PERMUTED,),
    ),
    Slip(
        "averaging in place",
        "flt",
        "a client's mean is loaded into its model before the means of later clients are made of that model",
        "hjraad/FLT src/comm/fedavg.py, FedAvg: load_state_dict inside the loop over the clients",
        "one model",
        lambda on: PlainFLT("in place" if on else "none"),
        lambda on: PlainFLT("in place" if on else "none"),
        (TWO_CLASSES, TWO_CLASSES | {"scenario": "flt-s2-digits"}),
        trains_others=True,
    ),
    Slip(
        "far pairs",
        "flt",
        "Sign(A − γ) relates the clients that are farther apart than γ",
        "the FLT paper as printed, where the server relates clients; hjraad/FLT src/utils/cluster.py has it right",
        "twins",
        lambda on: PlainFLT("far pairs" if on else "none"),
        lambda on: PlainFLT("far pairs" if on else "none"),
        (TWO_CLASSES,),
        trains_others=True,
    ),
    Slip(
        "weights p/‖A‖₀",
        "flt",
        "the relatives' models are multiplied by p_m/‖A_m‖₀: weights sum to p_m, the client's share of all samples",
        "the FLT paper, case I of Algorithm 3 as printed; hjraad/FLT divides by the relatives' samples",
        "weights",
        lambda on: PlainFLT("p/‖A‖₀" if on else "none"),
        lambda on: PlainFLT("p/‖A‖₀" if on else "none"),
        (TWO_CLASSES,),
        trains_others=True,
    ),
    Slip(
        "entrywise arccos",
        "pacfl",
        "the smallest angle is that of two single vectors, signs included, in place of the subspaces' principal angle",
        "MMorafah/PACFL src/clustering/hierarchical_clustering.py, calculating_adjacency",
        "signs",
        lambda on: PlainPACFL("entrywise arccos" if on else "none"),
        lambda on: PlainPACFL("entrywise arccos" if on else "none"),
        (ROTATED, ROTATED | {"centred": True}),
    ),
    Slip(
        "1/N once more",
        "fedcuau",
        "the mean update is divided by the number of clients though its weights sum to one",
        "the FedCUAU paper, Algorithm 1 as printed, for the mean update (and once more for the model)",
        "common part",
        lambda on: PlainCUAU("1/N" if on else "none"),
        lambda on: PlainCUAU("1/N" if on else "none", clusters=4),
        ({"scenario": "digits-dirichlet-quarters", "clients": 20, "rounds": 30},),
        trains_others=True,
        ranks_differences=True,
    ),
    Slip(
        "equal starts",
        "ifca",
        "all k models start as copies of one, so that everybody's lowest loss is the first one's",
        "a public collection of baselines beside a method called CLADE, class IFCAServer",
        "different starts",
        lambda on: PlainIFCA("equal starts" if on else "none"),
        lambda on: PlainIFCA("equal starts" if on else "none"),
        (ROTATED,),
    ),
    Slip(
        "idle to zero",
        "ifca",
        "a model that nobody chose in a round becomes the sum of no models, zero",
        "in no repository that we read: the authors' code, FedLab and others skip an empty cluster",
        "idle clusters",
        lambda on: PlainIFCA("idle to zero" if on else "none"),
        lambda on: PlainIFCA("idle to zero" if on else "none"),
        (ROTATED | {"participation": 0.2},),
    ),
]
"""The slips that are measured."""
