"""Data: sources (files to arrays), partitions (who holds what), shifts (what makes groups differ), scenarios.

What the author of a scenario or a data source in another package needs is here: see docs/extending.md.
"""

from coterie.data.builders import (
    BuildOptions,
    by_writer,
    class_sets,
    client_name,
    dirichlet_quarters,
    group_shifts,
    groups_of,
)
from coterie.data.combined import combined
from coterie.data.partitions import by_group_classes, power_law_sizes
from coterie.data.pools import Pool, TextPool
from coterie.data.scenario import Defaults, Scenario
from coterie.data.scenarios import find_scenario, list_scenarios
from coterie.data.shifts import rotate
from coterie.data.sources import Source, TextSource, available, data_folder, load_source, load_text_source

__all__ = [
    "BuildOptions",
    "Defaults",
    "Pool",
    "Scenario",
    "Source",
    "TextPool",
    "TextSource",
    "available",
    "by_group_classes",
    "by_writer",
    "class_sets",
    "client_name",
    "combined",
    "data_folder",
    "dirichlet_quarters",
    "find_scenario",
    "group_shifts",
    "groups_of",
    "list_scenarios",
    "load_source",
    "load_text_source",
    "power_law_sizes",
    "rotate",
]
