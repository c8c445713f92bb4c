"""Pure mathematics on arrays: similarity, splits, separation, relatedness, divergence, matching."""

from coterie.clustering.agglomerative import cut
from coterie.clustering.bipartition import Bipartition, bipartition
from coterie.clustering.cosine import cosine_matrix, norms
from coterie.clustering.divergence import (
    cuau,
    half_distances,
    neutral_cuau,
    percentile_clusters,
)
from coterie.clustering.matching import adjusted_rand_index, matched_distance, paper_distance
from coterie.clustering.relatedness import (
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
    "alpha_cross_max",
    "alpha_intra_min",
    "bipartition",
    "cosine_matrix",
    "cross_bound",
    "cuau",
    "cut",
    "gamma",
    "gamma_criterion",
    "half_distances",
    "matched_distance",
    "matching_distances",
    "min_pair_distances",
    "mixing_matrix",
    "neutral_cuau",
    "norms",
    "paper_distance",
    "percentile_clusters",
    "related",
    "separation_gap",
    "separation_guaranteed",
    "ward_clusters",
]
