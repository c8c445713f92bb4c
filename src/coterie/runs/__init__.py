"""A run: a method on a federation with a model and an engine, recorded and resumable."""

from coterie.runs.advising import advise
from coterie.runs.api import resume, run
from coterie.runs.assemble import assemble, make_federation
from coterie.runs.attacks import attacked_run
from coterie.runs.callbacks import Callback
from coterie.runs.cells import Cells
from coterie.runs.config import RunConfig, make_config
from coterie.runs.diagnosis import diagnose
from coterie.runs.differences import holm, interval, p_value
from coterie.runs.history import History
from coterie.runs.loading import open_run
from coterie.runs.metrics import score_clients
from coterie.runs.personalised import global_accuracy, personalised, personalised_accuracy
from coterie.runs.prepared import Run
from coterie.runs.records import RoundRecord
from coterie.runs.result import Result, load
from coterie.snapshot import write_atomically

__all__ = [
    "Callback",
    "Cells",
    "History",
    "Result",
    "RoundRecord",
    "Run",
    "RunConfig",
    "advise",
    "assemble",
    "attacked_run",
    "diagnose",
    "global_accuracy",
    "holm",
    "interval",
    "load",
    "make_config",
    "make_federation",
    "open_run",
    "p_value",
    "personalised",
    "personalised_accuracy",
    "resume",
    "run",
    "score_clients",
    "write_atomically",
]
