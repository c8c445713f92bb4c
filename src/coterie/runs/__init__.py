"""A run: a method on a federation with a model and an engine, recorded and resumable."""

from coterie.federation.fingerprint import fingerprint
from coterie.options import DEFAULT_SCENARIO, PLACE_KEYS
from coterie.runs.api import new_folder, resume, run, start
from coterie.runs.assemble import (
    Model,
    assemble,
    check_federation,
    make_architecture,
    make_federation,
    stored_values,
)
from coterie.runs.callbacks import Callback
from coterie.runs.config import SOURCE_KEYS, RunConfig, flat_values, make_config, overlay
from coterie.runs.folder import RunFolder
from coterie.runs.known_clients import clients_of
from coterie.runs.loading import load
from coterie.runs.loop import execute
from coterie.runs.metrics import score_clients
from coterie.runs.personalised import global_accuracy, personalised, personalised_accuracy
from coterie.runs.prepared import Run
from coterie.runs.records import History, RoundRecord
from coterie.runs.result import Result
from coterie.snapshot import write_atomically

__all__ = [
    "DEFAULT_SCENARIO",
    "PLACE_KEYS",
    "SOURCE_KEYS",
    "Callback",
    "History",
    "Model",
    "Result",
    "RoundRecord",
    "Run",
    "RunConfig",
    "RunFolder",
    "assemble",
    "check_federation",
    "clients_of",
    "execute",
    "fingerprint",
    "flat_values",
    "global_accuracy",
    "load",
    "make_architecture",
    "make_config",
    "make_federation",
    "new_folder",
    "overlay",
    "personalised",
    "personalised_accuracy",
    "resume",
    "run",
    "score_clients",
    "start",
    "stored_values",
    "write_atomically",
]
