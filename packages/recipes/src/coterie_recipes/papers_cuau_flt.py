"""What the papers of FedCUAU and FLT print, table by table and figure by figure."""

from __future__ import annotations

from coterie_recipes.papers_index import DRAWING, NOT_RUN, TRAIN, Item

NARROW = (
    "a narrow network on halved images reaches 45 % after 40 rounds, where the paper's ResNet-18 reaches 83 after 500: "
    "compare the signs of the differences."
)
QUARTER_SIGNS = (
    f"{NARROW} Those of the initial accuracy and of C4's gain over a model of C1's are the paper's. Two are not: after "
    "40 rounds C1's clients do better with the model that C1 alone trained, and C4's with the one of C4 alone, which "
    "the paper finds a little worse than the one trained by all."
)
CLUSTER_SIGNS = (
    f"{NARROW} Four of six are the paper's; the two of C1's personalised accuracy are not, but less than their errors "
    "from zero. That C2's clients do better with w^C2 is not so on Fashion-MNIST, below."
)
FASHION = "another data set, an MLP and 60 rounds: compare the signs of differences, not sizes. "
FASHION_QUARTERS = (
    f"{FASHION}As in the paper the initial accuracy is lowest where C4 alone trains, and falls a little when C4 joins "
    "the others. Not so C4's own: with 200 images per client it personalises a model of C1 as well as one of all, "
    "where the paper gains 11 points; C4 alone is the worst here."
)
FASHION_GAINS = f"{FASHION}All seven gains, in initial and in personalised accuracy, have the paper's sign."
FASHION_CLUSTERS = (
    f"{FASHION}w^C1 is better initially and for C1's clients, as in the paper. For C2's clients it is better too, "
    "except with FedPer; the paper has w^C2 ahead there with the three other bases."
)
WRITERS = "100 writers of ten digits, a small network and 60 rounds instead of 3,597 writers of 62 characters."
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
        differs=QUARTER_SIGNS,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 1",
        "FedAvg trained by some quarters, Fashion-MNIST instead",
        "papers/cuau-table1",
        differs=FASHION_QUARTERS,
    ),
    Item("Table 2", "the quarters", not_run="the setting of the others, nothing to run"),
    Item(
        "Table 3",
        "base methods with and without it, CIFAR-10",
        "papers/cuau-cifar",
        (("Table 3: *", "*"),),
        differs=NARROW,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 3",
        "base methods with and without it, Fashion-MNIST instead",
        "papers/cuau-table3",
        differs=FASHION_GAINS,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 3",
        "FEMNIST's writers; MNIST's instead",
        "papers/cuau-femnist",
        (("Table 3: *", "*"),),
        differs=WRITERS,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 4",
        "each cluster's layers for each cluster's clients, CIFAR-10",
        "papers/cuau-cifar",
        (("Table 4: *", "*"),),
        differs=CLUSTER_SIGNS,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 4",
        "each cluster's layers for each cluster's clients, Fashion-MNIST instead",
        "papers/cuau-table4",
        differs=FASHION_CLUSTERS,
    ),
    Item(
        "Table 4",
        "FEMNIST's writers; MNIST's instead",
        "papers/cuau-femnist",
        (("Table 4: *", "*"),),
        differs=WRITERS,
        not_run=NOT_RUN,
    ),
    Item(
        "Section 7",
        "quantity skew and feature shift, which the paper leaves open",
        "cuau-sizes",
        says="CUAU is to measure label skew; sizes and features are left to future work.",
    ),
)

FIFTY = (
    "50 rounds instead of 100, an MLP without dropout (the paper's has 0.5), encoders trained for two epochs. FedAvg "
    "and PCA+kM+HC, whose clusters mix the groups, are unfinished after 50 rounds (FedAvg had 84.38 in scenario 1 and "
    "87.37 in scenario 2 after 100, one seed)."
)
FIFTY_OVERLAPPING = (
    f"{FIFTY} With γ and C given such encoders misplace some clients, whose accuracy makes the large variance; where "
    "nothing is given, below, FLT does better."
)
CIFAR_NARROW = "a narrow network, one local epoch and 40 rounds: compare the order of the methods."
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
        "scenario 1, MNIST",
        "papers/flt-table1",
        (("*", "test accuracy %"), ("*", "variance*")),
        differs=FIFTY,
        not_run=NOT_RUN,
    ),
    Item(
        "Tables 1 and 7",
        "scenario 1, CIFAR-10, test and training data",
        "papers/flt-cifar",
        (("S1, *", "*accuracy %"), ("S1, *", "*variance*"), ("S1, *", "ARI*")),
        differs=CIFAR_NARROW,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 2",
        "scenario 2, MNIST",
        "papers/flt-table2",
        (("*", "test accuracy %"), ("*", "variance*")),
        differs=FIFTY_OVERLAPPING,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 2",
        "scenario 2, MNIST and Fashion-MNIST, nothing given",
        "flt-s2-untold",
        (("*", "test accuracy %"), ("*", "variance*"), ("*", "ARI*")),
        not_run=NOT_RUN,
    ),
    Item(
        "Tables 2 and 8",
        "scenario 2, CIFAR-10, test and training data",
        "papers/flt-cifar",
        (("S2, *", "*accuracy %"), ("S2, *", "*variance*"), ("S2, *", "ARI*")),
        differs=CIFAR_NARROW,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 3",
        "scenario 3, writers",
        "papers/flt-table3",
        (("*", "test accuracy %"), ("*", "variance*")),
        not_run=NOT_RUN,
    ),
    Item(
        "Table 4",
        "scenario 4, 240 clients and 20 rounds",
        "papers/flt-table4",
        (("*", "test accuracy %"), ("*", "variance*"), ("*", "ARI*")),
        not_run=NOT_RUN,
    ),
    Item("Table 5", "more clients, participation and rounds", "papers/flt-table5", not_run=NOT_RUN),
    Item("Table 6", "communication", "papers/flt-table6", not_run=NOT_RUN),
    Item(
        "Table 7",
        "scenario 1, training data",
        "papers/flt-table1",
        TRAIN,
        differs=FIFTY,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 8",
        "scenario 2, training data",
        "papers/flt-table2",
        TRAIN,
        differs=FIFTY_OVERLAPPING,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 9",
        "scenario 3, training data",
        "papers/flt-table3",
        TRAIN,
        not_run=NOT_RUN,
    ),
    Item(
        "Table 10",
        "scenario 4, training data",
        "papers/flt-table4",
        TRAIN,
        not_run=NOT_RUN,
    ),
    Item("Figures 4 and 8", "convergence, scenario 3", "papers/flt-convergence", (("S3*", "*"),), not_run=NOT_RUN),
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
