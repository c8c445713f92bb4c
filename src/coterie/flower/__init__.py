"""Coterie on Flower: the same methods over a real network, or inside an app that already runs on Flower.

Nothing that is started here reports to anybody: Flower's telemetry and its look for updates are switched off, unless
the environment says otherwise.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from coterie.errors import extra
from coterie.lazy import lazy_names

SWITCHES = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""Nothing that is started here may contact the internet."""
for _switch, _value in SWITCHES.items():
    os.environ.setdefault(_switch, _value)

with extra("flower", "coterie.flower"):
    if find_spec("flwr") is None:  # found, not loaded: that is for the part that needs it
        raise ModuleNotFoundError("No module named 'flwr'", name="flwr")

if TYPE_CHECKING:
    from coterie.flower.app_checks import answer_checks
    from coterie.flower.client import client_app
    from coterie.flower.engine import FlowerEngine
    from coterie.flower.inprocess import InProcessGrid
    from coterie.flower.server import server_app
    from coterie.flower.strategies import CFL, FedCUAU, FedSEM, OneShot

__all__ = [
    "CFL",
    "FedCUAU",
    "FedSEM",
    "FlowerEngine",
    "InProcessGrid",
    "OneShot",
    "answer_checks",
    "client_app",
    "server_app",
]

__getattr__ = lazy_names(__name__, __file__)
