"""Results to look at: figures, and a report that is one HTML file."""

from coterie_views.report.drawing import Draw, colour, over_rounds, pdf_of
from coterie_views.report.figures import Figure, logarithmic
from coterie_views.report.markup import element, table
from coterie_views.report.page import write_plots, write_report
from coterie_views.report.reading import RunView, judged, read_run
from coterie_views.report.study import StudyReport, StudyTable
from coterie_views.report.words import size

__all__ = [
    "Draw",
    "Figure",
    "RunView",
    "StudyReport",
    "StudyTable",
    "colour",
    "element",
    "judged",
    "logarithmic",
    "over_rounds",
    "pdf_of",
    "read_run",
    "size",
    "table",
    "write_plots",
    "write_report",
]
