"""Coterie: clustered federated learning. It finds clusters of clients while training, and each gets its model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie.lazy import lazy_names

if TYPE_CHECKING:
    from coterie.errors import CallbackError, CoterieError, StopRun
    from coterie.federation import Client, Federation, Split
    from coterie.methods import CFL, FLT, IFCA, FedAvg, FedCUAU, Local, Method
    from coterie.options import (
        AggregationOptions,
        DataOptions,
        EngineOptions,
        EvaluationOptions,
        LimitOptions,
        PrivacyOptions,
        TrainingOptions,
    )
    from coterie.runs import Callback, Result, RoundRecord, load, resume, run
    from coterie.trainers.base import Training
    from coterie_studies import Comparison, Sweep, compare, sweep

__version__ = "0.1.0"
__all__ = [
    "CFL",
    "FLT",
    "IFCA",
    "AggregationOptions",
    "Callback",
    "CallbackError",
    "Client",
    "Comparison",
    "CoterieError",
    "DataOptions",
    "EngineOptions",
    "EvaluationOptions",
    "FedAvg",
    "FedCUAU",
    "Federation",
    "LimitOptions",
    "Local",
    "Method",
    "PrivacyOptions",
    "Result",
    "RoundRecord",
    "Split",
    "StopRun",
    "Sweep",
    "Training",
    "TrainingOptions",
    "compare",
    "load",
    "resume",
    "run",
    "sweep",
]

_PACKAGES = dict.fromkeys(("Comparison", "Sweep", "compare", "sweep"), "coterie-studies")
"""Names of packages beside the core, which offer them as entry points of the group `coterie.names`."""


_own = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Load a part when it is first asked for: `coterie --help` and a look at the version need no torch."""
    if name in _PACKAGES:
        return import_module("coterie.plugins").required("coterie.names", name, f"coterie.{name}", _PACKAGES[name])
    return _own(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
