"""The methods, one file each with the same few names (State, start, round, assignment), and what a new one needs.

Everything that the author of a method in another package needs is here: see docs/methods.md.
"""

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from coterie.errors import ConfigError
from coterie.methods.aggregation import Aggregation, WeightedSum
from coterie.methods.auto import Auto
from coterie.methods.averaging import average_clusters, cluster_info, members_of
from coterie.methods.base import (
    Assignment,
    ClusterInfo,
    ClusterSplit,
    Event,
    Info,
    Matrix,
    Method,
    find_method,
    make_method,
    method,
    method_classes,
)
from coterie.methods.cfl import CFL
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedcuau import FedCUAU
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsem import FedSEM
from coterie.methods.flt import FLT
from coterie.methods.groups import Groups
from coterie.methods.heterogeneity import divergences
from coterie.methods.ifca import IFCA
from coterie.methods.local import Local
from coterie.methods.needs import Needs
from coterie.methods.oneshot import OneShot
from coterie.methods.options import literal, split_outside_brackets
from coterie.methods.pca_kmeans_hc import PcaKMeansHC
from coterie.methods.server import Exchange, Server, apply_update
from coterie.methods.splitting import LeafRound, Look, SplitDecision, SplitRule, branches_of, split_rule
from coterie.option_types import field_types
from coterie.parameters import Layout
from coterie.snapshot import saved
from coterie.tasks import (
    Array,
    ClientContext,
    Evaluate,
    Gradient,
    Number,
    Reply,
    ReplySchema,
    Request,
    Sent,
    Task,
    Train,
)
from coterie.trainers.base import Trainer, Training

__all__ = [
    "CFL",
    "FLT",
    "IFCA",
    "Aggregation",
    "Array",
    "Assignment",
    "Auto",
    "ClientContext",
    "ClusterInfo",
    "ClusterSplit",
    "ConfigError",
    "Ditto",
    "Evaluate",
    "Event",
    "Exchange",
    "FedAvg",
    "FedBABU",
    "FedCUAU",
    "FedPer",
    "FedProx",
    "FedSEM",
    "Field",
    "Gradient",
    "Groups",
    "Info",
    "Layout",
    "LeafRound",
    "Local",
    "Look",
    "Matrix",
    "Method",
    "Needs",
    "NonNegativeFloat",
    "NonNegativeInt",
    "Number",
    "OneShot",
    "PcaKMeansHC",
    "PositiveFloat",
    "PositiveInt",
    "Reply",
    "ReplySchema",
    "Request",
    "Sent",
    "Server",
    "SplitDecision",
    "SplitRule",
    "Task",
    "Train",
    "Trainer",
    "Training",
    "WeightedSum",
    "apply_update",
    "average_clusters",
    "branches_of",
    "cluster_info",
    "divergences",
    "field_types",
    "find_method",
    "literal",
    "make_method",
    "members_of",
    "method",
    "method_classes",
    "saved",
    "split_outside_brackets",
    "split_rule",
]
