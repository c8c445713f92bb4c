"""Which updates of a cluster pull against the others, and how much of each counts then.

Clients that learn the same thing pull together, and a few that pull the other way are hostile or broken. Where clients
do not pull together themselves, as at the end of training or in a cluster of several groups, nothing can be told.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Chosen by hand on seeds 1 to 3 of digits (fedavg and fedcuau on dirichlet, ifca and cfl on permuted, flt on flt-s1;
# and honest groups of 8/8/4, 16/4 and 12/5/2/1 clients), honest and with the attacks of `coterie attack` by three of 20
# clients; judged on other seeds in docs/security.md.
COPY = 1 - 1e-6
"""The cosine from which on one update is a copy of another."""
ENOUGH = 100
"""Numbers in an update from which on copies are no accident."""
FEWEST = 4
"""Updates of which one can be told to pull against the others."""
SHARE = 4
"""One in so many may hide in the sum that updates are compared with: as many as agree least are left out of it."""
ALONE = 6
"""At most one in so many is taken for hostile (but always one): more of them are a group of their own."""
FITS = 1.5
"""Times the median loss up to which a client is served as well as others."""
OPPOSED = -0.7
"""The cosine with the others from which on an update of any length pulls against them; honest ones stayed above -0.6
while clients pulled together."""
AGREES = 0.1
"""The cosine with the others from which on an update may pull as hard as the limits of a mean allow."""
ALIKE, APART = 0.5, -0.5
"""Cosines inside a camp and across two camps: families of FLT without a conflict never came to 0.2 and -0.2 in more
than one of 900 rounds, those with one had 0.77 and -0.57 after four rounds."""
CUT, OUT = 0.75, 2.0
"""By how much a cosine may miss that, times the pull in units of the usual one: above CUT it is cut, above OUT left
out."""
TRUSTED = 1.5
"""The same for clients whose losses have followed their updates so far (`conduct`): they are cut to it, and never left
out. Of 0.75, 1 and 1.5 the one that cost honest clients least on seeds 202 and 203 of dirichlet with step sizes of 0.02
and 0.05, where some with many samples of few classes came to 3."""


class Agreement(NamedTuple):
    """Each update's cosine with the sum of the others `(n,)`, and whether the updates pull together on the whole."""

    cosines: Floats
    together: bool

    def opposed(self) -> Bools:
        """Which updates pull against the others `(n,)`: none where the others do not pull together themselves.

        At most one in ALONE of them: more are a group of their own, or are found out by their losses (`conduct`).
        """
        against = self.cosines <= OPPOSED
        if self.together and int(against.sum()) <= max(1, len(against) // ALONE):
            return against
        return np.zeros_like(against)


def agreement(cosines: Floats) -> Agreement:
    """The agreement of updates with the cosines `(n, n)` between each two of them.

    The quarter that agrees least with all is left out of the sums in a second look: a few that pull together against
    the rest would otherwise hide in a sum that they have drawn to themselves.
    """
    count = len(cosines)
    if count < FEWEST:
        return Agreement(np.zeros(count), together=False)
    kept = np.ones(count, dtype=bool)
    first = _with_others(cosines, kept)
    kept[np.argsort(first, kind="stable")[: max(1, count // SHARE)]] = False
    return Agreement(_with_others(cosines, kept), together=bool(np.median(first) >= 0))


def _with_others(cosines: Floats, kept: Bools) -> Floats:
    """The cosine of each update with the sum of the kept ones of unit length, itself left out."""
    own = np.where(kept, np.diagonal(cosines), 0.0)
    along = cosines[:, kept].sum(axis=1) - own
    # |s - x|^2 = |s|^2 - 2 s.x + |x|^2 for an update x that is in the sum s.
    squared = cosines[np.ix_(kept, kept)].sum() - np.where(kept, 2 * along + own, 0.0)
    return np.asarray(along / np.sqrt(np.maximum(squared, 1e-12)))


def copied(cosines: Floats, numbers: int) -> Bools:
    """Which updates `(n,)` of so many numbers are multiples of one before them: clients with data of their own do not
    send what another sends. Of few numbers nothing can be told."""
    if numbers < ENOUGH:
        return np.zeros(len(cosines), dtype=bool)
    return np.asarray((np.tril(cosines, -1) > COPY).any(axis=1))


def camps(cosines: Floats) -> Bools | None:
    """Who is in the first update's camp `(n,)` where all updates are of two camps that pull against each other.

    None where they are not: within a camp all cosines are at least ALIKE, across at most APART, and each camp has two
    members or more. No model fits both, and it cannot be told which of them is in the wrong.
    """
    first = np.asarray(cosines[0] > 0) if len(cosines) >= FEWEST else np.zeros(0, dtype=bool)
    if min(int(first.sum()), int((~first).sum())) < 2:
        return None
    same = first[:, None] == first[None, :]
    return first if cosines[same].min() >= ALIKE and cosines[~same].max() <= APART else None


def fitted(losses: Floats) -> Bools:
    """Which clients' losses `(n,)` are about as low as the others'."""
    return np.asarray(losses <= FITS * np.sort(losses)[(len(losses) - 1) // 2]) if len(losses) else losses > 0


def counted(cosines: Floats, pulls: Floats, losses: Floats, trusted: Bools | None = None) -> Floats:
    """How much of each update counts `(n,)`: 1 for all of it, 0 for nothing.

    `cosines` `(n, n)` are between each two, `pulls` `(n,)` are how hard each pulls at the mean, length times weight,
    and `losses` `(n,)` are what the clients report. An update that pulls against the others does not count. One that
    pulls harder than usual must agree with them the more the harder it pulls; if it does not, it is cut to the usual
    pull or does not count; a `trusted` one may pull harder, and is cut as far as it must. Clients whose losses are high
    may pull hard where they are more than one in ALONE: they are a group that is not served yet.
    """
    found, fits = agreement(cosines), fitted(losses)
    shares = np.where(found.opposed(), 0.0, 1.0)
    usual = float(np.sort(pulls)[(len(pulls) - 1) // 2]) if len(pulls) else 0.0
    if not found.together or not usual > 0:
        return shares
    against = (AGREES - found.cosines) * pulls / usual
    known = np.zeros(len(pulls), dtype=bool) if trusted is None else trusted
    hard = (pulls > usual) & (against > np.where(known, TRUSTED, CUT))
    if int((hard & ~fits).sum()) > max(1, len(pulls) // ALONE):
        hard &= fits
    cut = usual / pulls[hard]
    shares[hard] *= np.where(known[hard], np.maximum(cut, TRUSTED / against[hard]), cut)
    shares[hard & ~known & (against > OUT)] = 0.0
    return shares
