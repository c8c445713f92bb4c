"""What the four papers print: each table and figure, the stored result that stands beside it, and what differs."""

from __future__ import annotations

from dataclasses import dataclass

Pattern = tuple[str, str]
"""Setting and measure of stored rows; `*` stands for anything."""


@dataclass(frozen=True)
class Item:
    """A table or figure, or a part of it."""

    place: str
    about: str
    stored: str | None = None
    """A file of docs/results without its ending."""
    rows: tuple[Pattern, ...] = (("*", "*"),)
    brief: tuple[Pattern, ...] = ()
    """Which of these rows stand in the overview: by default the first."""
    says: str = ""
    """The paper in words, where it plots its numbers without printing them."""
    differs: str = ""
    """What differs from the paper's setting and was tried, where our number is further away than errors explain."""
    not_run: str = ""
    """What to say where there is no stored result."""


DRAWING = "a drawing, nothing to run"
NO_FEMNIST = "not run: LEAF's FEMNIST is not among the data that we have"
NOT_RUN = "not run"
TRAIN = (("*", "train *"),)

CFL = (
    Item("Table I", "symbols", not_run="a list, nothing to run"),
    Item("Table II", "methods compared in words", not_run="a list, nothing to run"),
    Item(
        "Figure 1",
        "three toy problems: one that a single model fits, XOR, opposite conditionals",
        "papers/cfl-toy",
        (("*", "FedAvg accuracy %"), ("*", "CFL accuracy %"), ("*", "clusters of CFL")),
        brief=(("*", "clusters of CFL"),),
        says="a single linear model fits the first only; inside each cluster the classes are easily separated.",
    ),
    Item(
        "Figure 2",
        "cosine similarity and norms of updates, incongruent and congruent",
        "papers/cfl-toy",
        (("*", "least similarity inside a group"), ("*", "largest similarity across groups"), ("*", "largest update*")),
        brief=(("*", "largest similarity across groups"),),
        says="inside a cluster similarity stays, across clusters it falls quickly; norms vanish in the congruent case.",
    ),
    Item(
        "Figure 3",
        "probability of a correct split over K and γ",
        "papers/cfl-fig3",
        (("K=*", "P[correct]"), ("K=*, γ=1.25", "P[gap > 0]"), ("Theorem 1's area", "*")),
        brief=(("K=12, γ=1.25", "P[correct]"), ("Theorem 1's area", "*")),
        says="correct with certainty in Theorem 1's area, with probability close to 1 for K > 10 and γ > 1.",
        differs="at K = 20, γ = 1.25 the gap is positive in four draws of five, while the split is correct in all: a "
        "positive gap is sufficient for that, not necessary, and the paper's ≈ 1 is of the split.",
    ),
    Item("Figure 4", "the algorithm", not_run=DRAWING),
    Item(
        "Figure 5, Algorithm 4",
        "the parameter tree, and newcomers placed in it",
        "cfl-newcomers",
        brief=(("200 newcomers, cfl, participation 1", "*"),),
        says="a drawing; every newcomer should reach the leaf of its group.",
    ),
    Item(
        "Figure 6",
        "separation gap over the samples per client",
        "papers/cfl-gap-vs-samples",
        (("MNIST, *", "gap by *"),),
        brief=(("MNIST, *, 20 samples per client", "gap by updates"),),
        says="on MNIST positive from 20 samples on by updates, on CIFAR-10 from about 500.",
        differs="the paper's random subset may lack the labels that a group swaps; labels dealt evenly reach its 20.",
        not_run=NOT_RUN,
    ),
    Item(
        "Figure 7",
        "separation gap over the rounds",
        "papers/cfl-gap-vs-rounds",
        brief=(("MNIST, round 10", "gap by updates"),),
        says="rising, and positive after about 10 rounds by updates.",
        differs="the gap is positive earlier than in the paper, whose step size and network are not known.",
        not_run=NOT_RUN,
    ),
    Item(
        "Figure 8",
        "norms of the mean and of the largest update, congruent and incongruent",
        "papers/cfl-congruence",
        brief=(("*", "*update: last norm / highest"),),
        not_run=NOT_RUN,
    ),
    Item(
        "Figure 9",
        "CIFAR-10 with permuted labels",
        "papers/cfl-cifar-permuted",
        brief=(("CIFAR*", "*accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item(
        "Figure 10", "AG-News by topic", "papers/cfl-agnews", brief=(("AG*", "CFL / FL perplexity"),), not_run=NOT_RUN
    ),
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
        brief=(("σ=0.1, R=0.1", SUCCESS), ("σ=0.1, R=1", SUCCESS)),
        not_run=NOT_RUN,
        says="success rises with the separation R and falls with the noise σ.",
    ),
    Item(
        "Figure 2(b)",
        "success over R and σ, k = 4",
        "papers/ifca-fig2b",
        (("*", "*"),),
        brief=(("σ=0.1, R=0.1", SUCCESS), ("σ=0.1, R=1", SUCCESS)),
        not_run=NOT_RUN,
        says="as (a).",
    ),
    Item(
        "Figure 2(c)",
        "success over m and n, k = 2",
        "papers/ifca-fig2c",
        (("*", "*"),),
        brief=(("n=100, m=50", SUCCESS), ("n=100, m=200", SUCCESS)),
        not_run=NOT_RUN,
        says="success rises with the machines m and with the samples n.",
    ),
    Item(
        "Figure 2(d)",
        "success over m and n, k = 4",
        "papers/ifca-fig2d",
        (("*", "*"),),
        brief=(("n=100, m=100", SUCCESS), ("n=100, m=400", SUCCESS)),
        not_run=NOT_RUN,
        says="as (c).",
    ),
    Item(
        "Table 1",
        "rotated MNIST at the paper's size, one seed",
        "papers/ifca-table1-mnist-full",
        brief=(("*", "* accuracy %"),),
        differs=IFCA_FULL,
    ),
    Item(
        "Table 1",
        "rotated MNIST, a twentieth of the clients and 30 rounds",
        "papers/ifca-table1-mnist",
        brief=(("*", "IFCA*accuracy %"), ("*", "global accuracy %"), ("*", "local accuracy %")),
        differs="a tenth of the rounds and a twentieth of the clients; at the paper's size, above, ours agree.",
        not_run=NOT_RUN,
    ),
    Item(
        "Table 1",
        "rotated CIFAR-10",
        "papers/ifca-table1-cifar",
        brief=(("*", "* accuracy %"),),
        differs="20 clients, a small network and 20 rounds instead of 200 clients.",
        not_run=NOT_RUN,
    ),
    Item(
        "Table 2",
        "natural writers",
        "papers/ifca-table2",
        brief=(("*", "*"),),
        differs="MNIST's writers (10 digits) instead of FEMNIST's (62 characters), 40 of them, and an MLP. Ten classes "
        "are few enough to be learned alone: local models are the best here, and the order is not the paper's.",
        not_run=NOT_RUN,
    ),
    Item(
        "Theorem 1",
        "the error halves in a round, down to a floor",
        "papers/ifca-theorem1",
        (("*", "error after*"), ("*", "least constant*"), ("*", "wrong choices*")),
        brief=(("*", "error after*"),),
    ),
    Item(
        "Corollary 1",
        "the floor's rate, and the rounds to reach it",
        "papers/ifca-theorem1",
        (("*", "floor*"), ("*", "rounds until*")),
        brief=(("*", "floor*"),),
    ),
    Item("Theorem 2", "strongly convex losses", not_run=NOT_RUN),
    Item(
        "Section 6.3",
        "k above the number of groups leaves models empty",
        "papers/ifca-more-models",
        brief=(("*", "models in use*"),),
    ),
)

FEDCUAU = (
    Item(
        "Figure 1",
        "CUAU of the quarters",
        "papers/cuau-fig1",
        (("*", "Spearman*"), ("*", "mean CUAU of C*"), ("FedAvg run", "*")),
        says="the mean CUAU rises from C1 to C4 in every round.",
        not_run=NOT_RUN,
    ),
    Item("Figure 2", "the flow of knowledge", not_run=DRAWING),
    Item(
        "Figure 3",
        "layers in which clients differ",
        "papers/cuau-fig3",
        not_run=NOT_RUN,
        says="similarity falls and updates grow with depth, the more so the more heterogeneous the quarter is.",
    ),
    Item(
        "Table 1",
        "FedAvg trained by some quarters, CIFAR-10",
        "papers/cuau-cifar",
        (("Table 1: *", "*"),),
        brief=(("Table 1: trained*", "*"),),
        not_run=NOT_RUN,
    ),
    Item("Table 2", "the quarters", not_run="the setting of the others, nothing to run"),
    Item(
        "Table 3",
        "base methods with and without it, CIFAR-10",
        "papers/cuau-cifar",
        (("Table 3: *", "*"),),
        brief=(("*", "gain in initial"), ("*", "personalised")),
        not_run=NOT_RUN,
    ),
    Item(
        "Table 3",
        "base methods with and without it, Fashion-MNIST instead",
        "papers/cuau-table3",
        brief=(("*", "initial"),),
        not_run=NOT_RUN,
    ),
    Item("Table 3", "FEMNIST", not_run=NO_FEMNIST),
    Item(
        "Table 4",
        "each cluster's layers for each cluster's clients, CIFAR-10",
        "papers/cuau-cifar",
        (("Table 4: *", "*"),),
        brief=(("*minus*", "*"),),
        not_run=NOT_RUN,
    ),
    Item("Table 4", "FEMNIST", not_run=NO_FEMNIST),
    Item(
        "Section 7",
        "quantity skew and feature shift, which the paper leaves open",
        "cuau-sizes",
        says="CUAU is to measure label skew; sizes and features are left to future work.",
    ),
)

FLT = (
    Item("Figure 1", "the architecture", not_run=DRAWING),
    Item(
        "Figures 2 and 3",
        "relatedness and its dendrogram",
        "papers/flt-relatedness",
        (("S1", "*"), ("S3", "*")),
        not_run=NOT_RUN,
        says="blocks in scenario 1 show after ordering; scenario 3 has no clear ones.",
    ),
    Item(
        "Table 1",
        "scenario 1, MNIST, 100 rounds",
        "papers/flt-s1-mnist-full",
        brief=(("*", "test accuracy %"),),
        not_run=NOT_RUN,
        differs="all are one or two points above the paper's: our MLP has no dropout, the paper's has 0.5.",
    ),
    Item(
        "Table 1",
        "scenario 1, MNIST, 50 rounds",
        "papers/flt-table1",
        (("*", "test accuracy %"), ("*", "variance*")),
        brief=(("*", "test accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item("Table 1", "scenario 1, CIFAR-10", not_run=NOT_RUN),
    Item(
        "Table 2",
        "scenario 2, MNIST, 100 rounds",
        "papers/flt-s2-mnist-full",
        brief=(("*", "test accuracy %"),),
        not_run=NOT_RUN,
        differs="our MLP has no dropout, the paper's has 0.5.",
    ),
    Item(
        "Table 2",
        "scenario 2, MNIST, 50 rounds",
        "papers/flt-table2",
        (("*", "test accuracy %"), ("*", "variance*")),
        brief=(("*", "test accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item(
        "Table 2",
        "scenario 2, MNIST and Fashion-MNIST, nothing given",
        "papers/flt-s2-untold",
        (("*", "test accuracy %"), ("*", "variance*"), ("*", "ARI*")),
        brief=(("*", "test accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item("Table 2", "scenario 2, CIFAR-10", not_run=NOT_RUN),
    Item(
        "Table 3",
        "scenario 3, writers",
        "papers/flt-table3",
        (("*", "test accuracy %"), ("*", "variance*")),
        brief=(("*", "test accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item(
        "Table 4",
        "scenario 4, ten groups of all sizes, 2,400 clients",
        "papers/flt-s4-full",
        brief=(("*", "test accuracy %"),),
        not_run=NOT_RUN,
        says="with the MLP FedAvg 46.50, PCA+kM+HC 48.75, FedSEM 43.53, FLT 86.51, on EMNIST.",
    ),
    Item(
        "Table 4",
        "scenario 4, 240 clients and 20 rounds",
        "papers/flt-table4",
        (("*", "test accuracy %"), ("*", "variance*"), ("*", "ARI*")),
        brief=(("*", "test accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item("Table 5", "more clients, participation and rounds", "papers/flt-table5", not_run=NOT_RUN),
    Item("Table 6", "communication", "papers/flt-table6", brief=(("*", "*"),), not_run=NOT_RUN),
    Item(
        "Table 7",
        "scenario 1, training data",
        "papers/flt-table1",
        TRAIN,
        (("*", "train accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item(
        "Table 8",
        "scenario 2, training data",
        "papers/flt-table2",
        TRAIN,
        (("*", "train accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item(
        "Table 9",
        "scenario 3, training data",
        "papers/flt-table3",
        TRAIN,
        (("*", "train accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item(
        "Table 10",
        "scenario 4, training data",
        "papers/flt-table4",
        TRAIN,
        (("*", "train accuracy %"),),
        not_run=NOT_RUN,
    ),
    Item("Figures 4 and 8", "convergence, scenario 3", not_run=NOT_RUN),
    Item("Figures 5 and 9", "convergence, scenario 4", "papers/flt-convergence", (("S4*", "*"),), not_run=NOT_RUN),
    Item("Figure 6", "convergence, scenario 1", "papers/flt-convergence", (("S1*", "*"),), not_run=NOT_RUN),
    Item("Figure 7", "convergence, scenario 2", "papers/flt-convergence", (("S2*", "*"),), not_run=NOT_RUN),
    Item(
        "Figure 10",
        "scenario 3 with 2, 3 and 5 clusters",
        "papers/flt-table3",
        (("*FLT*", "test accuracy %"),),
        not_run=NOT_RUN,
        says="accuracy falls slightly with the number of clusters.",
    ),
    Item(
        "Figure 11",
        "relatedness of 240 clients in ten groups",
        "papers/flt-relatedness",
        (("S4", "*"),),
        not_run=NOT_RUN,
        says="the ten clusters are almost perfectly found.",
    ),
    Item(
        "Figure 12",
        "clusters of FedSEM in scenario 2",
        "papers/flt-table2",
        (("*FedSEM*", "ARI*"),),
        not_run=NOT_RUN,
        says="FedSEM is stuck from round 15 on.",
    ),
)

PAPERS = {"CFL": CFL, "IFCA": IFCA, "FedCUAU": FEDCUAU, "FLT": FLT}
