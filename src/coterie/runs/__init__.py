"""A run: a method on a federation with a model and an engine, recorded and resumable."""

from coterie.runs.api import resume, run
from coterie.runs.loop import Callback, Run
from coterie.runs.result import History, Result

__all__ = ["Callback", "History", "Result", "Run", "resume", "run"]
