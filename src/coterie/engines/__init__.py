"""Where the clients' work runs: in this process, in worker processes, or on a Ray cluster."""

from coterie.engines.base import Engine, Fault, Traffic
from coterie.engines.local import LocalEngine, available_cores

__all__ = ["Engine", "Fault", "LocalEngine", "Traffic", "available_cores"]
