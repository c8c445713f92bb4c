"""Each paper's tables and figures, by name, on Coterie's public API."""

from coterie_recipes import (
    cfl_congruence,
    cfl_decisions,
    cfl_gap,
    cfl_grid,
    cfl_map,
    cfl_newcomers,
    cfl_runs,
    cfl_toy,
    cuau_figures,
    cuau_tables,
    flt_figures,
    flt_tables,
    ifca_figures,
    ifca_tables,
)
from coterie_recipes.base import Findings, Recipe, Row, Study, find_recipe, list_recipes, recipe, reproduce

__all__ = [
    "Findings",
    "Recipe",
    "Row",
    "Study",
    "cfl_congruence",
    "cfl_decisions",
    "cfl_gap",
    "cfl_grid",
    "cfl_map",
    "cfl_newcomers",
    "cfl_runs",
    "cfl_toy",
    "cuau_figures",
    "cuau_tables",
    "find_recipe",
    "flt_figures",
    "flt_tables",
    "ifca_figures",
    "ifca_tables",
    "list_recipes",
    "recipe",
    "reproduce",
]
