"""Do two sides of a CFL cluster conflict? Tests of what the step of each does to the other, label by label.

A part of both sides' mean steps is tried on samples that they were not made of. Clients that agree on what a label
looks like can only help each other there, whatever their label proportions, once a constant is added to the outputs.
So a step that raises the loss of the other side's samples of a label that both hold shows a conflict. All functions are
pure; what they read are the sums of `coterie.tasks.halves.LabelSums`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.clustering.half_vectors import TINY, Floats

# Chosen by hand from the forks of all checks (also of those that no rule would judge) on federations 8401 to 8700 of
# the recipe `cfl-grid`: 150 congruent ones, and those with a conflict that the rule before missed.
PART = 0.25
"""The part of the sides' steps that is tried. A whole step may overshoot, and then harms everybody, its own side too;
of one that does not, a part shows as much: what it does to the losses and their noise shrink alike."""
LEAST_P = 1e-300
"""Smaller p-values count as this."""
SHARED = 1 / 3
"""Two sides share a label if its proportion on the one is at least this part of that on the other."""
LEAST_SHARED = 0.5
"""Sides that share the labels of less than half of their samples do not conflict: they differ in what they hold."""
MOST_SHARED = 0.9
"""Sides that share less than this part differ in their labels too, and must show a conflict the more surely."""
FEWEST_SAMPLES = 4
"""Samples of a label from which on its mean gain is looked at."""
SEEN = 0.05
"""The largest p-value of a label whose harm is counted."""
CONFLICT = 3e-5
"""The largest p-value of a conflict, both sides together: a run makes many checks, each of the clearest split."""
ONE_SIDE, SURE_SIDE = 0.05, 1e-8
"""The largest p-value of each side alone; SURE_SIDE where the sides differ in their labels too, or gain less apart."""
SUGGESTED = 1e-3
"""The largest p-value of sides that are split because both of them hold a conflict."""
LEAST_HARM = 0.03
"""The harm on both sides must be this part of what their own steps gain: large federations see the smallest."""
LEAST_GAIN, SURE_GAIN = 0.25, 0.15
"""What the sides' own steps gain must be this part of the cluster's fastest progress: people's handwritings differ in
earnest too, but little is left to learn from that. SURE_GAIN where each side is harmed as surely as SURE_SIDE. Of
conflicts the lowest were 0.17 (sure) and 0.37, of most writers it was less than 0.2, and none was sure."""


class Harm(NamedTuple):
    """What the other side's step does to a side."""

    p_value: float
    """Of "it raises the loss of no label that both hold"."""
    harm: float
    """The loss it adds on the labels it harms, in parts of what the own step gains."""
    gain: float
    """The mean fall of the side's loss by its own step, on data it was not made of."""
    shared: float
    """The part of the side's samples whose labels both hold."""
    samples: float


def harm_of(mine: Floats, theirs: Floats) -> Harm:
    """How the step of the other side harms this one.

    mine, theirs: (8, labels + 1), `LabelSums` over the units of the two sides. A unit is half of a client's data. For
    each label that both sides hold a t-test over the samples asks whether the other side's step raises their loss.
    Samples of one unit are alike, and the steps have noise that they share: by how much the spread of the units' means
    exceeds that of independent samples is estimated over all labels together, because one label of few clients cannot
    tell. The p-values of the labels are combined by their truncated product, as if labels were independent; what all
    labels of a unit share makes the result too small, which is one reason for a small CONFLICT.
    """
    from scipy.special import stdtr

    units, samples, own, other, squared, times, samples_squared, by_sample = mine
    shares = [side[1] / max(side[1, -1], TINY) for side in (mine, theirs)]
    both = ((shares[1] >= SHARED * shares[0]) & (samples >= FEWEST_SAMPLES) & (units >= 2))[:-1]
    shared = float(shares[0][:-1][both].sum())
    mean_gain = float(own[-1] / max(samples[-1], TINY))
    if not both.any():
        return Harm(1.0, 0.0, mean_gain, shared, float(samples[-1]))
    u, n, o, squares = (row[:-1][both] for row in (units, samples, other, samples_squared))
    mean = o / n
    spread = np.maximum(by_sample[:-1][both] - n * mean**2, 0.0) / (n - 1)
    between = np.maximum(squared[:-1][both] - 2 * mean * times[:-1][both] + mean**2 * squares, 0.0)
    expected = spread * (n - squares / n)
    freedom = u - 1
    excess = np.divide(between, expected, out=np.ones_like(between), where=expected > 0)
    alike = max(1.0, float(freedom @ excess / freedom.sum()))
    t = mean / np.maximum(np.sqrt(alike * spread / n), LEAST_P)
    # stdtr(n, x) is P(T ≤ x) of Student's t with n degrees of freedom: those of the spread, and of what units share.
    values = np.maximum(stdtr(n - 1, t), stdtr(freedom.sum(), t))
    gain = float(np.maximum(own[:-1][both], 0.0).sum())
    harm = float(np.where(values <= SEEN, np.maximum(-o, 0.0), 0.0).sum())
    return Harm(truncated_product(values), harm / max(gain, TINY), mean_gain, shared, float(samples[-1]))


def truncated_product(p_values: npt.ArrayLike, level: float = SEEN) -> float:
    """The p-value of the product of those p-values that are at most `level` (Zaykin and others, 2002).

    It sees a few small ones among many, as two labels that a group has swapped, and many that are not so small.
    """
    values = np.maximum(np.asarray(p_values, dtype=np.float64), LEAST_P)
    low = float(np.log(values[values <= level]).sum())
    if low == 0:
        return 1.0
    total = 0.0
    for k in range(1, len(values) + 1):
        chance = math.comb(len(values), k) * (1 - level) ** (len(values) - k)
        beyond = k * math.log(level) - low
        if beyond <= 0:
            total += chance * level**k
        else:
            total += chance * sum(math.exp(low + j * math.log(beyond) - math.lgamma(j + 1)) for j in range(k))
    return min(total, 1.0)


def conflict_p_value(sides: tuple[Harm, Harm]) -> float:
    """The p-value of "neither side's step harms the other", over both sides, by Fisher's combination."""
    product = max(sides[0].p_value * sides[1].p_value, LEAST_P)
    return product * (1 - math.log(product))


def gain_of(sides: tuple[Harm, Harm]) -> float:
    """What the sides' own steps, whole ones, would gain per sample, from what their parts gain."""
    samples = sum(side.samples for side in sides)
    return sum(side.gain * side.samples for side in sides) / max(samples, TINY) / PART


def is_conflict(sides: tuple[Harm, Harm], fastest: float = 0.0) -> bool:
    """Do two sides conflict: do their steps help themselves and harm the other, surely and not just barely?

    Steps that help nobody are too long, or learn samples by heart, and harm others for that alone. `fastest` is the
    largest fall of the cluster's loss in a round so far, 0 where that says nothing.
    """
    shared, worst = min(side.shared for side in sides), max(side.p_value for side in sides)
    least = (SURE_GAIN if worst <= SURE_SIDE else LEAST_GAIN) * fastest
    if shared < LEAST_SHARED or min(side.harm for side in sides) < LEAST_HARM or gain_of(sides) <= max(least, 0.0):
        return False
    return worst <= (ONE_SIDE if shared >= MOST_SHARED else SURE_SIDE) and conflict_p_value(sides) <= CONFLICT
