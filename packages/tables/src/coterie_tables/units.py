"""Columns in another unit at one site: location and spread both differ from the other sites', by a known factor.

A unit changes location and spread by one factor; a site with other patients has another location and much the same
spread. So both must differ from the other sites' more than sites usually do (each by Student's t, together by an F test
over all sites and columns), and one known factor must make both agree (neither rejected at the same level). A column
without a single value in the range of the other sites' is named whether a factor fits or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np

from coterie.federation.labels import SURELY_CLASSES
from coterie.federation.table_columns import listed
from coterie.federation.table_files import RawColumn
from coterie_tables.findings import LEVEL, Finding, Tables, columns_of

FACTORS = {
    10: "a decimal place, or dm for m", 100: "% for a share, or cm for m", 1000: "g for kg, or mm for m",
    1e6: "mg for kg", 12: "months for years", 7: "days for weeks", 24: "hours for days", 60: "minutes for hours",
    3600: "seconds for hours", 365.25: "days for years", 30.44: "days for months", 52.18: "weeks for years",
    2.2046: "pounds for kg", 28.35: "g for ounces", 2.54: "cm for inches", 25.4: "mm for inches",
    39.37: "inches for m", 3.2808: "feet for m", 30.48: "cm for feet", 1.6093: "km for miles", 3.6: "km/h for m/s",
    7.5006: "mmHg for kPa", 6.8948: "kPa for psi", 51.715: "mmHg for psi", 4.184: "kJ for kcal",
    3.7854: "litres for gallons", 18.016: "mg/dl for mmol/l of glucose", 38.67: "mg/dl for mmol/l of cholesterol",
    88.57: "mg/dl for mmol/l of triglycerides", 88.42: "µmol/l for mg/dl of creatinine",
    17.1: "µmol/l for mg/dl of bilirubin", 59.48: "µmol/l for mg/dl of uric acid", 2.801: "mg/dl for mmol/l of urea",
    4.008: "mg/dl for mmol/l of calcium", 1.6114: "g/dl for mmol/l of haemoglobin",
}  # fmt: skip
"""Known factors between units, each for the other way round too."""
SHIFTED = {(1.8, 32.0): "°F for °C", (1 / 1.8, -32 / 1.8): "°C for °F", (1.0, 273.15): "K for °C"}
"""Factor and offset of units that do not share their zero."""
NORMAL_QUARTILE = 0.6745
"""The median of the absolute value of a standard normal variable."""


@dataclass(frozen=True)
class Form:
    """A site's values of a column: their median, the mean distance from it, and the variances of both estimates."""

    location: float
    spread: float
    location_error: float
    """Of the location, in spreads."""
    spread_error: float
    """Of the spread's logarithm."""
    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> Form | None:
        """The form of finite values `(n,)`; None where all are the same."""
        location = float(np.median(values)) if len(values) else 0.0
        distances = np.abs(values - location)
        spread = float(distances.mean()) if len(values) else 0.0
        if not spread:
            return None
        location_error = math.pi / 2 * float(values.var()) / spread**2 / len(values)  # of a normal sample's median
        spread_error = float(distances.var()) / spread**2 / len(values)
        return cls(location, spread, location_error, spread_error, float(values.min()), float(values.max()))

    def apart(self, other: Form, factor: float = 1.0, offset: float = 0.0) -> np.ndarray:
        """Of this form in another unit against another: the locations' difference in spreads, and log spread: (2,).

        The larger spread counts: where it is large values of both sites overlap.
        """
        spread = self.spread / factor
        location = ((self.location - offset) / factor - other.location) / max(spread, other.spread)
        return np.array([location, math.log(spread / other.spread)])


def check_units(tables: Tables) -> Iterator[Finding]:
    """Columns whose numbers at a site are in another unit, or far outside the other sites'."""
    columns = {name: forms for name, known in columns_of(tables) if len(forms := _forms(known)) > 1}
    tests = sum(len(forms) for forms in columns.values())
    usual = _usual_variance(columns.values())
    freedom = max(1, sum(len(forms) - 1 for forms in columns.values()) - 1)
    for name, forms in columns.items():
        for site, form in forms.items():
            others = {other: known for other, known in forms.items() if other != site}
            yield from _judge(site, name, form, list(others.values()), usual, freedom, tests)


def _are_quantities(values: np.ndarray) -> bool:
    """Whether a column with these values holds more than may be codes."""
    values = values[np.isfinite(values)]
    may_be_codes = len(values) <= SURELY_CLASSES and bool((values == values.round()).all())
    return len(values) > 2 and not may_be_codes


def _forms(columns: Mapping[str, RawColumn]) -> dict[str, Form]:
    """A column's form at each site; none unless it holds numbers at all sites, and more than may be codes."""
    numbers = {site: column.numbers for site, column in columns.items() if column.numbers is not None}
    if len(numbers) < len(columns) or not _are_quantities(np.unique(np.concatenate(list(numbers.values())))):
        return {}
    forms = {site: Form.of(values[np.isfinite(values)]) for site, values in numbers.items()}
    return {site: form for site, form in forms.items() if form is not None}


def _usual_variance(columns: Iterable[Mapping[str, Form]]) -> np.ndarray:
    """The variance of location and log spread between sites, over all columns, by the median absolute difference."""
    pairs = [one.apart(other) for forms in columns for one, other in combinations(forms.values(), 2)]
    if not pairs:
        return np.zeros(2)
    return (np.median(np.abs(pairs), axis=0) / NORMAL_QUARTILE) ** 2 / 2


def _judge(
    site: str, column: str, form: Form, others: list[Form], usual: np.ndarray, freedom: int, tests: int
) -> Iterator[Finding]:
    """What a site's column looks like beside the other sites'."""
    from scipy.stats import f, t

    middle = _middle(others)
    theirs = np.array([other.apart(middle) for other in others])
    between = np.maximum(usual, theirs.var(axis=0, ddof=1)) if len(others) > 1 else usual
    error = np.sqrt(between * (1 + 1 / len(others)) + [form.location_error, form.spread_error])
    agrees = t.isf(LEVEL / 2, freedom)
    surprise = np.abs(form.apart(middle)) / error
    differs = (surprise > agrees).all() and np.square(surprise).mean() > f.isf(LEVEL / tests, 2, freedom)
    distance = abs(form.location - middle.location) / middle.spread / error[0]
    beyond = form.low > middle.high or form.high < middle.low
    surely = t.isf(LEVEL / tests / 2, freedom)
    outside = beyond and distance > surely
    misfits = {unit: float((np.abs(form.apart(middle, *unit)) / error).max()) for unit in _units()}
    most = surely if outside else agrees
    fitting = [unit for unit in sorted(misfits, key=misfits.__getitem__) if misfits[unit] < most]
    if fitting and (differs or outside):
        yield _other_unit(site, column, form, middle, fitting)
    elif outside:
        what = f"{form.low:.4g} to {form.high:.4g}, at the other sites {middle.low:.4g} to {middle.high:.4g}"
        yield Finding(site, column, what, "look up its unit and its meaning there")


def _middle(others: Sequence[Form]) -> Form:
    """The other sites' column: medians, and the range of them all."""
    location = median(other.location for other in others)
    spread = median(other.spread for other in others)
    return Form(location, spread, 0, 0, min(other.low for other in others), max(other.high for other in others))


def _units() -> dict[tuple[float, float], str]:
    one_way = {(float(factor), 0.0): name for factor, name in FACTORS.items()}
    return one_way | {(1 / factor, 0.0): _turned(name) for factor, name in FACTORS.items()} | SHIFTED


def _turned(name: str) -> str:
    """ "cm for m" as "m for cm"; what it is of stays last."""
    units, of, substance = name.partition(" of ")
    given = [part.partition(" for ") for part in units.split(", or ")]
    return ", or ".join(f"{usual} for {unit}" if usual else unit for unit, _, usual in given) + of + substance


def _other_unit(site: str, column: str, form: Form, middle: Form, fitting: list[tuple[float, float]]) -> Finding:
    """The finding of another unit, of those that fit: one whose name is the column's first, then the closest."""
    names = _units()
    best, *further = sorted(fitting, key=lambda unit: not _is_of(column, names[unit]))
    factor, offset = best
    times = f"{factor:g} times" if factor > 1 else f"1/{1 / factor:g} of"
    guess = f"{times} theirs, {names[best]}?" if not offset else f"{names[best]}?"
    what = f"its median is {form.location:.4g}, at the other sites {middle.location:.4g}: {guess}"
    minus = f" minus {offset:.6g}" if offset else ""
    others = f"; {listed((names[unit] for unit in further), 3)} would fit too" if further else ""
    remedy = f"divide it{minus} by {factor:.6g}{others}"
    return Finding(site, column, what, remedy, {"units": {column: best}})


def _is_of(column: str, unit: str) -> bool:
    """Whether a unit is one of the substance that a column is called by, as in "mg/dl for mmol/l of glucose"."""
    return unit.rpartition(" of ")[2] in column.lower()
