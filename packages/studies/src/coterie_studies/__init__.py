"""Studies of several runs: methods side by side, searches for options, and results of many jobs that resume."""

from typing import TYPE_CHECKING

from coterie.lazy import lazy_names

if TYPE_CHECKING:
    from coterie_studies.cells import Cells
    from coterie_studies.compared import Comparison, compare
    from coterie_studies.differences import holm, p_value
    from coterie_studies.sweeping import sweep
    from coterie_studies.trials import Sweep

__all__ = ["Cells", "Comparison", "Sweep", "compare", "holm", "p_value", "sweep"]

__getattr__ = lazy_names(__name__, __file__)
