"""The papers of the methods: what each is, what no option undoes, and the hyper-parameters that it prints by table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Table(NamedTuple):
    """The hyper-parameters of a table or figure, with which `as=NAME` fills in what is not given."""

    about: str
    options: Mapping[str, Any] = NOTHING
    """Of the method."""
    training: Mapping[str, Any] = NOTHING
    """Of the run: rounds and local training."""
    federation: Mapping[str, Any] = NOTHING
    """The scenario, its size and the network; none of it counts beside data or a scenario of one's own."""
    ours: str = ""
    """What the paper does not print, and where it is from."""


class Difference(NamedTuple):
    """What is different from the paper whatever the options are."""

    printed: str
    here: str
    why: str


class Paper(NamedTuple):
    """What a method is published in."""

    citation: str
    differences: tuple[Difference, ...] = ()
    tables: Mapping[str, Table] = NOTHING


FLT_TRAINING = {"rounds": 100, "participation": 0.2, "lr": 0.01, "batch_size": 10}
FLT_OPTIONS = {"k": 5, "finetune": 5}
ENCODER = "the encoder of Enc2 is pretrained on other data: give encoder=FILE, made by 'coterie encoder train'"


def _scenario_of_flt(number: int, clusters: Mapping[str, Any], images: str = "") -> Table:
    """Table 1 or 2 of FLT, with Enc2."""
    mnist = not images
    return Table(
        f"scenario {number} on {'MNIST' if mnist else 'CIFAR-10'}, Enc2",
        {**FLT_OPTIONS, **clusters},
        FLT_TRAINING | {"epochs": 1 if mnist else 5},
        {"scenario": f"flt-s{number}{images}", "clients": 100, "model": "mlp" if mnist else "cnn-leaf"},
        ENCODER,
    )


def every(rounds: int) -> str:
    """CFL's rule with an ε1 and an ε2 that always hold, so that a cluster is looked at every N rounds."""
    return f"paper(eps1=1000,eps2=0.001,wait={rounds},recheck={rounds})"


C5 = {"clusters": 5}
PAPERS: Mapping[str, Paper] = {
    "cfl": Paper(
        "Sattler, Müller, Samek, IEEE TNNLS 2020",
        (
            Difference("bipartition in O(M³)", "single linkage, O(M²)", "the same optimum"),
            Difference("Algorithm 4's maxima", "each over the edges of its own child", "the indices slip"),
        ),
        {
            "figure9": Table(
                "CIFAR-10 with permuted labels",
                {"rule": every(50), "weighting": "uniform"},
                {"rounds": 200, "epochs": 3, "batch_size": 100, "lr": 0.05},
                {"scenario": "cifar-permuted", "clients": 20, "groups": 4, "samples": 2500, "model": "cnn-cifar"},
                "lr=0.05 is ours; ε1, ε2 and γ_max are not printed, and splits come in rounds 50, 100 and 150: here "
                "the round alone decides when a cluster may split, and γ_max is measured",
            ),
            "figure10": Table(
                "AG-News by topic",
                {"rule": every(30), "weighting": "uniform"},
                {"rounds": 100, "epochs": 3, "batch_size": 100},
                {"scenario": "agnews-topics", "clients": 20, "groups": 4},
                "lr, vocabulary and widths are ours; splits come in rounds 30, 60 and 90: as in figure9",
            ),
        },
    ),
    "ifca": Paper(
        "Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020",
        (
            Difference(
                "option I divides by m",
                "m is the number of participants",
                "the step's size does not depend on participation",
            ),
        ),
        {
            "table1-mnist": Table(
                "rotated MNIST, the column m = 4800, n = 50",
                {"k": 4},
                {"rounds": 300, "steps": 10, "batch_size": "full", "lr": 0.1, "participation": 1.0},
                {"scenario": "mnist-rotated", "clients": 4800, "samples": 50, "groups": 4, "model": "mlp"},
                "rounds=300 is not printed; for the other columns give clients=2400, samples=100 or 1200 and 200",
            ),
            "table1-cifar": Table(
                "rotated CIFAR-10, m = 200, n = 500",
                {"k": 2},
                {
                    "rounds": 600,
                    "epochs": 5,
                    "batch_size": 50,
                    "lr": 0.25,
                    "lr_schedule": "decay:0.99",
                    "participation": 0.1,
                    "augment": "flip,crop:4",
                },
                {"scenario": "cifar-rotated", "clients": 200, "samples": 500, "groups": 2, "model": "cnn-leaf"},
                "rounds=600 and lr=0.25 are of the authors' code",
            ),
        },
    ),
    "fedcuau": Paper(
        "anonymous authors, 2022",
        (
            Difference("the aggregate update is divided by N once more", "it is not", "the weights sum to one already"),
            Difference(
                "the smallest value falls outside the strict bound of C₁",
                "it belongs to C₁",
                "every client needs a cluster",
            ),
            Difference("exponential decay with ratio η₁/η_T", "ratio η_T/η₁", "as printed the step size grows"),
            Difference("Proposition 1 has a factor n_k/n", "it has none", "as printed it is no bound"),
        ),
        {
            "table3-cifar": Table(
                "CIFAR-10, four quarters with Dirichlet α = 1000, 1, 0.5, 0.1",
                {"clusters": 2, "specific": ("block4", "last")},
                {
                    "rounds": 500,
                    "epochs": 1,
                    "lr": 0.1,
                    "lr_schedule": "step:0.1@250@375",
                    "participation": 0.1,
                    "personalise": 5,
                },
                {"scenario": "cifar-dirichlet-quarters", "clients": 100, "samples": 500, "model": "resnet18"},
                "the batch size is not printed: the scenario's",
            ),
            "table3-femnist": Table(
                "LEAF's FEMNIST, 35 writers per round",
                {"clusters": 2, "specific": ("conv2", "last")},
                {
                    "rounds": 200,
                    "epochs": 1,
                    "lr": 0.01,
                    "lr_schedule": "exponential:0.006",
                    "participation": 35 / 3597,
                    "personalise": 5,
                },
                {"scenario": "femnist", "clients": 3597, "model": "cnn-leaf"},
                "the batch size is not printed: the scenario's",
            ),
        },
    ),
    "flt": Paper(
        "Jamali-Rad, Abdizadeh, Szabó, 2021",
        (
            Difference("Sign(A − γ)", "related means *nearer* than γ", "as printed it marks the far pairs"),
            Difference("weights p_m/‖A_m‖₀", "weights that sum to one", "means must be means"),
            Difference("n in the bound of D.1", "√n", "the mean of n samples has noise σ/√n"),
        ),
        {
            "table1": _scenario_of_flt(1, NOTHING),
            "table1-cifar": _scenario_of_flt(1, NOTHING, "-cifar"),
            "table2": _scenario_of_flt(2, C5),
            "table2-cifar": _scenario_of_flt(2, C5, "-cifar"),
        },
    ),
    "fedavg": Paper("McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017"),
    "fedprox": Paper(
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020",
        (
            Difference(
                "clients are drawn in proportion to their data, and their models averaged alike",
                "drawn alike, and averaged by their data",
                "as FedAvg, so that the two differ by μ alone",
            ),
        ),
    ),
    "fedbabu": Paper("Oh, Kim, Yun, ICLR 2022"),
    "fedper": Paper("Arivazhagan, Aggarwal, Singh, Choudhary, 2019"),
    "ditto": Paper("Li, Hu, Beirami, Smith, ICML 2021"),
    "oneshot": Paper(
        "Ghosh, Hong, Yin, Ramchandran, 2019",
        (
            Difference(
                "k-means of the clients' exact minimisers",
                "of their models after `warmup_rounds`",
                "networks have no exact ones",
            ),
            Difference(
                "trimmed means of gradients in each cluster",
                "the mean of updates",
                "a robust rule is a choice: aggregate=trimmed-mean:0.1",
            ),
        ),
    ),
    "fedsem": Paper("Xie, Long, Shen, Zhou, Wang, Jiang, Zhang, 2020"),
    "pca-kmeans-hc": Paper("a baseline of Jamali-Rad, Abdizadeh, Szabó, 2021, which prints no details of it"),
    "flhc": Paper(
        "Briggs, Fan, Andras, IJCNN 2020",
        (
            Difference(
                "clusters continue from the common model",
                "from that model, moved by the cluster's mean update",
                "the updates are there already",
            ),
        ),
    ),
    "clove": Paper("Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, ICML 2026"),
    "pacfl": Paper(
        "Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, AAAI 2023",
        (
            Difference(
                "the authors' code takes the arc cosine of each entry of UᵢᵀUⱼ",
                "singular values of it",
                "signs of singular vectors are arbitrary",
            ),
        ),
    ),
    "fedem": Paper(
        "Marfoq, Neglia, Bellet, Kameni, Vidal, NeurIPS 2021",
        (
            Difference(
                "the proportions π stay with the client",
                "the server keeps them and the client reports them",
                "records say which models serve a client, and clients keep no state",
            ),
        ),
    ),
    "fedrc": Paper(
        "Guo, Tang, Lin, ICML 2024",
        (
            Difference(
                "the proportions π stay with the client",
                "the server keeps them and the client reports them",
                "as in FedEM",
            ),
        ),
    ),
    "fedsoft": Paper(
        "Ruan, Joe-Wong, AAAI 2022",
        (
            Difference(
                "weights that sum to slightly more than one",
                "weights that sum to one",
                "they are reported as a mixture",
            ),
            Difference(
                "participants are drawn for each cluster, by their weight in it",
                "drawn as for every method",
                "all methods of a comparison ask the same clients",
            ),
        ),
    ),
    "feddrift": Paper(
        "Jothimurugesan, Hsieh, Wang, Joshi, Gibbons, AISTATS 2023",
        (Difference("time steps of many rounds", "every round is a step", "changes come unannounced"),),
    ),
}
"""By the method's name; one that is not here, as `local`, has none."""
