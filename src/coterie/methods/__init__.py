"""The methods, one file each, with the same few names: State, start, round, assignment."""

from coterie.methods.base import Assignment, ClusterInfo, Event, Info, Method, make_method, method, method_classes
from coterie.methods.cfl import CFL
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedcuau import FedCUAU
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedsem import FedSEM
from coterie.methods.flt import FLT
from coterie.methods.ifca import IFCA
from coterie.methods.local import Local
from coterie.methods.oneshot import OneShot
from coterie.methods.pca_kmeans_hc import PcaKMeansHC
from coterie.methods.server import Server

__all__ = [
    "CFL",
    "FLT",
    "IFCA",
    "Assignment",
    "ClusterInfo",
    "Event",
    "FedAvg",
    "FedBABU",
    "FedCUAU",
    "FedPer",
    "FedProx",
    "FedSEM",
    "Info",
    "Local",
    "Method",
    "OneShot",
    "PcaKMeansHC",
    "Server",
    "make_method",
    "method",
    "method_classes",
]
