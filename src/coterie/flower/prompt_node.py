"""A SuperNode that looks for messages several times a second, for a network on one machine.

Flower's own waits three seconds when there is no message, which spares a SuperLink with many nodes. Whoever fetches a
message before all of its parts are there asks for them again after a second. On the loopback these pauses are most of
a round.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

LONGEST_PAUSE = 0.2
"""Seconds that a node on the loopback waits before it looks again."""
FIRST_RETRY = 0.03
"""Seconds until a part of a message that was not there is asked for again; Flower doubles them each time."""


class ShortPauses:
    """A module `time` whose `sleep` never lasts longer than `longest` seconds."""

    def __init__(self, module: ModuleType, longest: float) -> None:
        self._module, self._longest = module, longest

    def sleep(self, seconds: float) -> None:
        """Wait, but not for long."""
        self._module.sleep(min(seconds, self._longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def shorten_pauses(module: ModuleType, longest: float = LONGEST_PAUSE) -> bool:
    """Have a module's own `time.sleep` last no longer than that; False where the module does not import `time`."""
    if getattr(module, "time", None) is not time:
        return False
    vars(module)["time"] = ShortPauses(time, longest)
    return True


def shorten_retries(module: ModuleType, first: float = FIRST_RETRY) -> int:
    """Have a module's functions that retry with a growing pause begin with that one; how many of them there are."""
    defaults = [getattr(function, "__kwdefaults__", None) or {} for function in vars(module).values()]
    found = [own for own in defaults if "initial_backoff" in own]
    for own in found:
        own["initial_backoff"] = first
    return len(found)


def main() -> None:
    """Be `flower-supernode`, with its arguments."""
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    shorten_retries(inflatable_utils)
    shorten_pauses(start_client_internal)  # Flower has no option for it; a version that waits elsewhere waits longer
    flower_supernode()


if __name__ == "__main__":
    main()
