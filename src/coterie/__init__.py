"""Coterie: clustered federated learning. It finds clusters of clients while training, and each gets its model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.errors import CallbackError, CoterieError, StopRun
    from coterie.federation import Client, Federation, Split
    from coterie.methods import CFL, FLT, IFCA, FedAvg, FedCUAU, Local, Method
    from coterie.report import Comparison, compare
    from coterie.runs import Callback, Result, RoundRecord, load, resume, run
    from coterie.runs.sweep import sweep
    from coterie.runs.trials import Sweep
    from coterie.trainers.base import Training

__version__ = "0.1.0"
__all__ = [
    "CFL",
    "FLT",
    "IFCA",
    "Callback",
    "CallbackError",
    "Client",
    "Comparison",
    "CoterieError",
    "FedAvg",
    "FedCUAU",
    "Federation",
    "Local",
    "Method",
    "Result",
    "RoundRecord",
    "Split",
    "StopRun",
    "Sweep",
    "Training",
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
    "Callback": "coterie.runs",
    "CallbackError": "coterie.errors",
    "Client": "coterie.federation",
    "Comparison": "coterie.report",
    "CoterieError": "coterie.errors",
    "FedAvg": "coterie.methods",
    "FedCUAU": "coterie.methods",
    "Federation": "coterie.federation",
    "Local": "coterie.methods",
    "Method": "coterie.methods",
    "Result": "coterie.runs",
    "RoundRecord": "coterie.runs",
    "Split": "coterie.federation",
    "StopRun": "coterie.errors",
    "Sweep": "coterie.runs.trials",
    "Training": "coterie.trainers.base",
    "compare": "coterie.report",
    "load": "coterie.runs",
    "resume": "coterie.runs",
    "run": "coterie.runs",
    "sweep": "coterie.runs.sweep",
}


def __getattr__(name: str) -> Any:
    """Load a part when it is first asked for: `coterie --help` and a look at the version need no torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
