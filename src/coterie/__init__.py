"""Coterie: clustered federated learning. It finds clusters of clients while training, and each gets its model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.errors import CallbackError, CoterieError, StopRun
    from coterie.federation import Client, Federation, Split
    from coterie.methods import CFL, FLT, IFCA, FedAvg, FedCUAU, Local, Method
    from coterie.runs import Callback, Result, RoundRecord, load, resume, run
    from coterie.runs.options import (
        AggregationOptions,
        DataOptions,
        EngineOptions,
        EvaluationOptions,
        LimitOptions,
        PrivacyOptions,
        TrainingOptions,
    )
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

_MODULES = {
    "CFL": "coterie.methods",
    "FLT": "coterie.methods",
    "IFCA": "coterie.methods",
    "AggregationOptions": "coterie.runs.options",
    "Callback": "coterie.runs",
    "CallbackError": "coterie.errors",
    "Client": "coterie.federation",
    "CoterieError": "coterie.errors",
    "DataOptions": "coterie.runs.options",
    "EngineOptions": "coterie.runs.options",
    "EvaluationOptions": "coterie.runs.options",
    "FedAvg": "coterie.methods",
    "FedCUAU": "coterie.methods",
    "Federation": "coterie.federation",
    "LimitOptions": "coterie.runs.options",
    "Local": "coterie.methods",
    "Method": "coterie.methods",
    "PrivacyOptions": "coterie.runs.options",
    "Result": "coterie.runs",
    "RoundRecord": "coterie.runs",
    "Split": "coterie.federation",
    "StopRun": "coterie.errors",
    "Training": "coterie.trainers.base",
    "TrainingOptions": "coterie.runs.options",
    "load": "coterie.runs",
    "resume": "coterie.runs",
    "run": "coterie.runs",
}
_PACKAGES = dict.fromkeys(("Comparison", "Sweep", "compare", "sweep"), "coterie-studies")
"""Names of packages beside the core, which offer them as entry points of the group `coterie.names`."""


def __getattr__(name: str) -> Any:
    """Load a part when it is first asked for: `coterie --help` and a look at the version need no torch."""
    if name in _PACKAGES:
        value = import_module("coterie.plugins").required("coterie.names", name, f"coterie.{name}", _PACKAGES[name])
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
