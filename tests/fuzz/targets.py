"""All the targets."""

from __future__ import annotations

from .configs import Configs
from .files import Files
from .folders import Folders
from .harness import Target
from .messages import Messages
from .options import Options
from .requests import Requests
from .sums import Sums
from .tables import Tables

TARGETS: tuple[Target, ...] = (Configs(), Options(), Files(), Folders(), Tables(), Messages(), Requests(), Sums())
