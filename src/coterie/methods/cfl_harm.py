"""Do two sides of a CFL cluster conflict? Tests of what the step of each does to the other, label by label.

Both sides' mean steps are tried on samples that they were not made of. Clients that agree on what a label looks like
can only help each other there, whatever their label proportions, once a constant is added to the outputs. So a step
that raises the loss of the other side's samples of a label that both hold shows a conflict. All functions are pure;
what they read are the sums of `coterie.tasks.halves.LabelSums`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from coterie.clustering.half_vectors import TINY, Floats

# Chosen by hand from what checks showed on 90 federations drawn like those of the recipe `cfl-grid`, none of which is
# among them. That steps must help their own side came after two writers' federations and two with noisy labels had
# been split wrongly. SURE and FEWEST_UNITS came next, from what was missed or torn among federations 6001 to 6136 and
# what 42 congruent ones after 9000 showed. Then, from two of 37 congruent ones that were split among 77 of 7001 to
# 7300: ONE_SIDE, and that a side without gain needs like labels. Last, from what was missed among 7301 to 7600:
# FEW_SIDE, and samples that vouch for sides with few clients (`is_conflict`).
SHARED = 1 / 3
"""Two sides share a label if its proportion on the one is at least this part of that on the other."""
LEAST_SHARED = 0.5
"""Sides that share the labels of less than half of their samples do not conflict: they differ in what they hold."""
MOST_SHARED = 0.9
"""From this part of shared samples on all labels together are looked at too."""
FEWEST_SAMPLES = 4
"""Samples of a label from which on its mean gain is looked at."""
FEWEST_UNITS = 8
"""Halves of clients from which on their means are compared; of fewer, single samples are."""
CONFLICT = 1e-5
"""The largest p-value of a conflict, both sides together, and ONE_SIDE of each side alone: a run makes many checks."""
ONE_SIDE = 1e-4
FEW_SIDE = 1e-5
"""The largest p-value by single samples, of each side, where one has few clients."""
SEEN = 0.05
"""The largest p-value of a label whose harm is counted."""
SUGGESTED, LIKELY = 1e-3, 0.1
"""The same where a large saving speaks for a split too: a client alone, with its two halves, can show no more."""
SURE = 1e-8
"""CONFLICT where the clients only may differ, or a side has few clients: writers differ in earnest too."""
LEAST_HARM = 0.03
"""The harm on both sides must be this part of what their own steps gain: large federations see the smallest."""


class Harm(NamedTuple):
    """What the other side's step does to a side."""

    p_value: float
    """Of "it raises the loss of no label that both hold": `by_units`, or `by_samples` where `few` are on the side."""
    by_units: float
    """That p-value by a t-test over halves of clients: sure if it is small, because clients may differ."""
    by_samples: float
    """The same over single samples: it sees more, and takes every difference between clients for one of the sides."""
    harm: float
    """The loss it adds on the labels it harms, in parts of what the own step gains."""
    gain: float
    """The mean fall of the side's loss by its own step, on data it was not made of."""
    shared: float
    """The part of the side's samples whose labels both hold."""
    samples: float
    few: bool
    """Are there too few clients for a t-test over their halves?"""


def harm_of(mine: Floats, theirs: Floats) -> Harm:
    """How the step of the other side harms this one.

    mine, theirs: (8, labels + 1), `LabelSums` over the units of the two sides. A unit is half of a client's data. For
    each label that both sides hold, and for all together if they are such, a t-test over the units asks whether the
    other side's step raises the loss; of up to three clients, that have few units, a t-test over their samples, unless
    there are no labels: squared errors have long tails. The smallest p-value counts, by Bonferroni: half of the level
    is for all labels together, half is shared by the single ones.
    """
    from scipy.special import stdtr

    units, samples, own, other, squared, times, samples_squared, by_sample = mine
    shares = [side[1] / max(side[1, -1], TINY) for side in (mine, theirs)]
    both = (shares[1] >= SHARED * shares[0]) & (samples >= FEWEST_SAMPLES) & (units >= 2)
    single = both[:-1]
    shared = float(shares[0][:-1][single].sum())
    mean_gain = float(own[-1] / max(samples[-1], TINY))
    both[-1] &= shared >= MOST_SHARED
    few = bool(units[-1] < FEWEST_UNITS and single.sum() > 1)
    if not both.any():
        return Harm(1.0, 1.0, 1.0, 0.0, mean_gain, shared, float(samples[-1]), few)
    n, o, u = samples[both], other[both], units[both]
    mean = o / n
    spread = np.maximum(squared[both] - 2 * mean * times[both] + mean**2 * samples_squared[both], 0.0)
    own_spread = np.maximum(by_sample[both] / n - mean**2, 0.0)
    tests = np.where(np.arange(len(both)) < len(single), single.sum(), 1)[both]

    def p_values(error: Floats, freedom: Floats) -> Floats:
        # stdtr(n, x) is P(T ≤ x) of Student's t with n degrees of freedom.
        return np.asarray(np.minimum(2 * tests * stdtr(freedom, mean / np.maximum(error, TINY)), 1.0))

    by_units = p_values(np.sqrt(spread * u / (u - 1)) / n, u - 1)
    by_samples = p_values(np.sqrt(own_spread / (n - 1)), n - 1)
    values = by_samples if few else by_units
    gain = float(np.maximum(own[:-1][single], 0.0).sum())
    harms = np.where(values <= SEEN, np.maximum(-o, 0.0), 0.0)
    whole = float(harms[-1]) if both[-1] else 0.0
    harm = max(whole, float(harms.sum()) - whole)
    smallest = [float(p.min()) for p in (values, by_units, by_samples)]
    return Harm(
        smallest[0], smallest[1], smallest[2], harm / max(gain, TINY), mean_gain, shared, float(samples[-1]), few
    )


def conflict_p_value(sides: tuple[Harm, Harm]) -> float:
    """The p-value of "neither side's step harms the other", over both sides."""
    return fisher(*(side.p_value for side in sides))


def fisher(first: float, second: float) -> float:
    """Fisher's combination of two p-values."""
    product = max(first * second, 1e-300)
    return product * (1 - math.log(product))


def is_conflict(sides: tuple[Harm, Harm], sure: bool = False) -> bool:
    """Do two sides conflict: do their steps help themselves and harm the other, surely and not just barely?

    `sure` asks for the smaller p-values. Steps that help nobody are too long, or learn samples by heart, and harm
    others for that alone. A side that the model fits already, because it has most of the weight, gains nothing more:
    there the conflict must be sure, and the labels nearly the same. Where both sides gain, single samples may make up
    for a side whose clients are too few or too noisy to be sure by themselves.
    """
    fitted = min(side.gain for side in sides) <= 0
    if fitted and min(side.shared for side in sides) < MOST_SHARED:
        return False
    if sum(side.gain * side.samples for side in sides) <= 0 or min(side.harm for side in sides) < LEAST_HARM:
        return False
    units, samples = [side.by_units for side in sides], max(side.by_samples for side in sides)
    if not fitted and fisher(*units) <= CONFLICT and max(units) <= SEEN and samples <= SURE:
        return True
    if any(side.few for side in sides) and samples > FEW_SIDE:
        return False
    level = SURE if sure or fitted else CONFLICT
    return conflict_p_value(sides) <= level and max(side.p_value for side in sides) <= ONE_SIDE
