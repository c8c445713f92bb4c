"""What the papers of CFL and IFCA print, table by table and figure by figure."""

from __future__ import annotations

from coterie_recipes.papers_index import DRAWING, EARLIER, NOT_RUN, Item

CFL = (
    Item("Table I", "symbols", not_run="a list, nothing to run"),
    Item("Table II", "methods compared in words", not_run="a list, nothing to run"),
    Item(
        "Figure 1",
        "three toy problems: one that a single model fits, XOR, opposite conditionals",
        "papers/cfl-toy",
        (("*", "FedAvg accuracy %"), ("*", "CFL accuracy %"), ("*", "clusters of CFL")),
        says="a single linear model fits the first only; inside each cluster the classes are easily separated.",
    ),
    Item(
        "Figure 2",
        "cosine similarity and norms of updates, incongruent and congruent",
        "papers/cfl-toy",
        (("*", "least similarity inside a group"), ("*", "largest similarity across groups"), ("*", "largest update*")),
        says="inside a cluster similarity stays, across clusters it falls quickly; norms vanish in the congruent case.",
    ),
    Item(
        "Figure 3",
        "probability of a correct split over K and γ",
        "papers/cfl-fig3",
        (("K=*", "P[correct]"), ("K=*, γ=1.25", "P[gap > 0]"), ("Theorem 1's area", "*")),
        says="correct with certainty in Theorem 1's area, with probability close to 1 for K > 10 and γ > 1.",
        differs="at K = 20, γ = 1.25 the gap is positive in four draws of five, while the split is correct in all: a "
        "positive gap is sufficient for that, not necessary, and the paper's ≈ 1 is of the split.",
    ),
    Item("Figure 4", "the algorithm", not_run=DRAWING),
    Item(
        "Figure 5, Algorithm 4",
        "the parameter tree, and newcomers placed in it",
        "cfl-newcomers",
        says="a drawing; every newcomer should reach the leaf of its group.",
    ),
    Item(
        "Section IV-B, Algorithm 5",
        "clusters from updates that the server cannot read",
        "private-cfl",
        (("*", "same *"), ("*", "accuracy %")),
        says="clients may agree on an orthonormal transformation of updates: cosines, and so the clusters, stay.",
    ),
    Item(
        "Figure 6",
        "separation gap over the samples per client",
        "papers/cfl-gap-vs-samples",
        (("MNIST, *", "gap by *"),),
        says="on MNIST positive from 20 samples on by updates, on CIFAR-10 from about 500.",
        differs="the paper's random subset may lack the labels that a group swaps; labels dealt evenly reach its 20.",
        not_run=EARLIER,
    ),
    Item(
        "Figure 7",
        "separation gap over the rounds",
        "papers/cfl-gap-vs-rounds",
        says="rising, and positive after about 10 rounds by updates.",
        differs="the gap is positive earlier than in the paper, whose step size and network are not known.",
        not_run=NOT_RUN,
    ),
    Item(
        "Figure 8",
        "norms of the mean and of the largest update, congruent and incongruent",
        "papers/cfl-congruence",
        not_run=NOT_RUN,
    ),
    Item(
        "Figure 8",
        "the same over step size, network and rounds: where the thresholds separate the two cases",
        "papers/cfl-norm-map",
        picture="cfl-norm-map.png",
        not_run=NOT_RUN,
        says="the largest norm converges to zero with the mean norm where clients are congruent, and stagnates or even "
        "increases where they are not.",
    ),
    Item(
        "Figure 9",
        "CIFAR-10 with permuted labels",
        "papers/cfl-cifar-permuted",
        not_run=EARLIER,
    ),
    Item("Figure 10", "AG-News by topic", "papers/cfl-agnews", not_run=EARLIER),
)

SUCCESS = "success, paper's distance"
IFCA_FULL = (
    "our local models train as long as the others and are better than the paper's; after the 10 rounds that the "
    "authors' script takes by default ours are at the paper's number."
)
IFCA = (
    Item("Figure 1", "the algorithm", not_run=DRAWING),
    Item(
        "Figure 2(a)",
        "success over R and σ, k = 2",
        "papers/ifca-fig2a",
        (("*", "*"),),
        not_run=NOT_RUN,
        says="success rises with the separation R and falls with the noise σ.",
    ),
    Item(
        "Figure 2(b)",
        "success over R and σ, k = 4",
        "papers/ifca-fig2b",
        (("*", "*"),),
        not_run=NOT_RUN,
        says="as (a).",
    ),
    Item(
        "Figure 2(c)",
        "success over m and n, k = 2",
        "papers/ifca-fig2c",
        (("*", "*"),),
        not_run=EARLIER,
        says="success rises with the machines m and with the samples n.",
    ),
    Item(
        "Figure 2(d)",
        "success over m and n, k = 4",
        "papers/ifca-fig2d",
        (("*", "*"),),
        not_run=EARLIER,
        says="as (c).",
    ),
    Item(
        "Table 1",
        "rotated MNIST at the paper's size, one seed",
        "papers/ifca-table1-mnist-full",
        differs=IFCA_FULL,
        not_run=EARLIER,
    ),
    Item(
        "Table 1",
        "rotated MNIST, a twentieth of the clients and 30 rounds",
        "papers/ifca-table1-mnist",
        differs="a tenth of the rounds and a twentieth of the clients.",
        not_run=NOT_RUN,
    ),
    Item(
        "Table 1",
        "rotated CIFAR-10",
        "papers/ifca-table1-cifar",
        differs="20 clients, a small network and 20 rounds instead of 200 clients.",
        not_run=NOT_RUN,
    ),
    Item(
        "Table 2",
        "natural writers",
        "papers/ifca-table2",
        differs="MNIST's writers (10 digits) instead of FEMNIST's (62 characters), 40 of them, and an MLP. Ten classes "
        "are few enough to be learned alone: local models are the best here, and the order is not the paper's.",
        not_run=NOT_RUN,
    ),
    Item(
        "Theorem 1",
        "the error halves in a round, down to a floor",
        "papers/ifca-theorem1",
        (("*", "error after*"), ("*", "least constant*"), ("*", "wrong choices*")),
    ),
    Item(
        "Corollary 1",
        "the floor's rate, and the rounds to reach it",
        "papers/ifca-theorem1",
        (("*", "floor*"), ("*", "rounds until*")),
    ),
    Item(
        "Theorem 2",
        "strongly convex losses: a round's contraction, and the floor's rate",
        "papers/ifca-theorem2",
        not_run=NOT_RUN,
    ),
    Item(
        "Section 6.3",
        "k above the number of groups leaves models empty",
        "papers/ifca-more-models",
    ),
)
