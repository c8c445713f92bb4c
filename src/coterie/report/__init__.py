"""Results to look at: tables, figures, and a report that is one HTML file."""

from coterie.report.compared import Comparison, compare
from coterie.report.page import write_plots, write_report

__all__ = ["Comparison", "compare", "write_plots", "write_report"]
