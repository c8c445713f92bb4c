"""Where the clients' work runs: in this process, in worker processes, or on a Ray cluster."""

from coterie.engines.base import Capabilities, Engine, Fault, Traffic
from coterie.engines.children import begin_child, ignore_sigint, pool_start_method, submitted
from coterie.engines.local import LocalEngine, available_cores

__all__ = [
    "Capabilities",
    "Engine",
    "Fault",
    "LocalEngine",
    "Traffic",
    "available_cores",
    "begin_child",
    "ignore_sigint",
    "pool_start_method",
    "submitted",
]
