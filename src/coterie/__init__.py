"""Coterie: clustered federated learning. It finds the kinds of clients while training, and each gets its model."""

from coterie.errors import CoterieError
from coterie.federation import Client, Federation, Split
from coterie.methods import FedAvg, Local, Method
from coterie.runs import Callback, Result, resume, run
from coterie.workbench import Training

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Client",
    "CoterieError",
    "FedAvg",
    "Federation",
    "Local",
    "Method",
    "Result",
    "Split",
    "Training",
    "resume",
    "run",
]
