"""Pure mathematics on arrays: similarity, splits, separation, relatedness, divergence, matching."""

from coterie.clustering.bipartition import Bipartition, bipartition
from coterie.clustering.cosine import cosine_matrix, norms
from coterie.clustering.divergence import aggregate_update, cuau, percentile_clusters
from coterie.clustering.matching import adjusted_rand_index, matched_distance, paper_distance
from coterie.clustering.relatedness import (
    auto_gamma,
    matching_distances,
    min_pair_distances,
    mixing_matrix,
    related,
    ward_clusters,
)
from coterie.clustering.separation import (
    H_ij,
    alpha_cross_max,
    alpha_intra_min,
    cross_bound,
    gamma,
    gamma_criterion,
    separation_gap,
    separation_guaranteed,
)

__all__ = [
    "Bipartition",
    "H_ij",
    "adjusted_rand_index",
    "aggregate_update",
    "alpha_cross_max",
    "alpha_intra_min",
    "auto_gamma",
    "bipartition",
    "cosine_matrix",
    "cross_bound",
    "cuau",
    "gamma",
    "gamma_criterion",
    "matched_distance",
    "matching_distances",
    "min_pair_distances",
    "mixing_matrix",
    "norms",
    "paper_distance",
    "percentile_clusters",
    "related",
    "separation_gap",
    "separation_guaranteed",
    "ward_clusters",
]
