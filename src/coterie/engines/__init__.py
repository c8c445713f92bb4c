"""Where the clients' work runs."""

from coterie.engines.base import Engine, Fault
from coterie.engines.feedforward import FeedforwardBench
from coterie.engines.local import LocalEngine
from coterie.engines.loop import LoopBench

__all__ = ["Engine", "Fault", "FeedforwardBench", "LocalEngine", "LoopBench"]
