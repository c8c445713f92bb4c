"""FedCUAU's Tables 3 and 4 on writers: LEAF's FEMNIST where the data folder has it, else MNIST by its writers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from coterie.data import available
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cuau import CuauSetting
from coterie_recipes.cuau_tables import BASES, NOTES, Accuracies, table3_rows, table4_rows, with_and_without

TABLE_4: dict[str, tuple[Accuracies, Accuracies]] = {
    "fedavg": ((80.12, 85.61, 84.34, 84.06), (78.62, 78.00, 71.46, 74.73)),
    "fedprox": ((80.70, 85.54, 84.24, 83.12), (79.51, 78.40, 71.96, 75.18)),
    "fedbabu": ((80.29, 85.76, 82.35, 82.80), (78.70, 78.44, 72.02, 76.39)),
    "fedper": ((None, 66.68, 60.26, 63.47), (None, 60.00, 53.00, 56.49)),
}
OWN_MODEL = {"fedavg": 78.54, "fedprox": 78.75, "fedbabu": 78.89, "fedper": 59.83}
FULL = CuauSetting("femnist", "cnn-leaf", 200, 0.01, "exponential:0.006", participation=35 / 3597, clients=3597)
"""The paper's: LEAF's CNN, 35 of 3,597 writers per round."""
QUICK = CuauSetting("mnist-writers", "cnn-small", 60, 0.1, "exponential:0.03", participation=0.2)
"""A small network, 20 of 100 writers per round."""


def writers_setting(study: Study) -> CuauSetting:
    """The paper's at full scale; else the small one, on FEMNIST where the data folder has it."""
    present = any(found.present for found in available(study.data_dir) if found.name == "femnist")
    return FULL if study.full else replace(QUICK, scenario="femnist" if present else "mnist-writers")


@recipe("cuau-femnist", "FedCUAU Tables 3 and 4 on FEMNIST's writers, or on MNIST's: initial and personalised accuracy")
def cuau_femnist(study: Study) -> Findings:
    """Four base methods, each with and without FedCUAU, from one run."""
    setting = writers_setting(study)
    cells = {
        base: [
            study.cell(f"{base}-seed{seed}", partial(with_and_without, study, setting, base, seed))
            for seed in study.seeds
        ]
        for base in BASES
    }
    rows = [
        Row(f"Table {number}: {row.setting}", row.measure, row.ours, row.paper)
        for number, table in ((3, table3_rows(cells, TABLE_4, OWN_MODEL)), (4, table4_rows(cells, TABLE_4)))
        for row in table
    ]
    notes = [*NOTES]
    if not study.full:
        notes.append("100 writers, a small network and 60 rounds instead of 3,597, LEAF's CNN and 200")
    if setting.scenario != "femnist":
        notes.append("MNIST by its writers (10 digits), not FEMNIST (62 characters), which the data folder lacks")
    return Findings(rows, notes)
