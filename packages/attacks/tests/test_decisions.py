"""One hostile client of twenty in what forms clusters: the honest clients' partition stays as it is.

More seeds: `coterie attack --methods cfl --attacks veto,forced-split --hostile 1 --rounds 12 --seeds 0,1,2,3,4,5,6,7`,
whose column "partition" is 1.00.
"""

from __future__ import annotations

from functools import cache

import pytest

from coterie.clustering import adjusted_rand_index
from coterie.runs import make_config
from coterie_attacks.frontier import attacked_run

OPTIONS = {"clients": 20, "rounds": 9, "method": "cfl", "model": "mlp:hidden=16", "workers": 1, "evaluate_every": 100}


@cache
def honest_run(scenario, seed):
    return attacked_run(make_config(OPTIONS | {"scenario": scenario, "seed": seed}), "none", 0)


@pytest.mark.parametrize("attack", ["veto", "forced-split"])
@pytest.mark.parametrize(
    ("scenario", "clusters", "seed"),
    [("digits:permuted(2)", 2, 0), ("digits:permuted(2)", 2, 1), ("digits:none", 1, 0), ("digits:none", 1, 1)],
)
def test_one_liar_neither_prevents_a_split_nor_forces_one(scenario, clusters, seed, attack):
    expected = honest_run(scenario, seed).cluster
    assert len(set(expected.values())) == clusters
    found = attacked_run(make_config(OPTIONS | {"scenario": scenario, "seed": seed}), attack, 1).cluster
    same = adjusted_rand_index([expected[client] for client in found], list(found.values()))
    assert len(found) == 19
    assert same == 1.0
