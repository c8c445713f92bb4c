"""FLT's tables 1-5: accuracy and its variance over clients beside the paper's numbers, as published and by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.methods.published import PAPERS
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.flt import DROPOUT_NOTE, FINETUNE, PCA_NOTE, has, measured, rows_of, trained_encoder
from coterie_recipes.flt_numbers import (
    TABLE_1_CIFAR,
    TABLE_1_MNIST,
    TABLE_2_CIFAR,
    TABLE_2_MNIST,
    TABLE_3,
    TABLE_4,
    TABLE_5,
    TABLE_7_CIFAR,
    TABLE_7_MNIST,
    TABLE_8_CIFAR,
    TABLE_8_MNIST,
    TABLE_9,
    TABLE_10,
    Paper,
)

QUICK_ROUNDS = 50
MNIST_ENCODERS = ("mnist+fashion", "fashion-mnist")
"""What Enc1 and Enc2 are trained on."""
FEDSEM_NOTE = (
    "'FedSEM' clusters all clients' last models, most of them untrained at first, as the FLT authors' published code "
    "does; clustering only the models of the round is stronger."
)


def fedsems(clusters: int) -> dict[str, str]:
    """FedSEM as the paper ran it, and two stronger ways to run it."""
    fedsem = f"fedsem:clusters={clusters}"
    return {
        "FedSEM": fedsem,
        "FedSEM of the round's models, random start": f"{fedsem},over=participants,init=random",
        "FedSEM of the round's models, k-means start": f"{fedsem},over=participants",
    }


def scenario_methods(table: str, enc1: str, enc2: str) -> dict[str, str]:
    """The methods of Tables 1 and 2, as published, and FLT by our default, in the order in which they are run."""
    return {
        "FLT (Enc2)": f"flt:as={table},encoder={enc2}",
        "FLT (Enc1)": f"flt:as={table},encoder={enc1},finetune=0",
        "FedAvg": "fedavg",
        "local": "local",
        "PCA+kM+HC": "pca-kmeans-hc:as=paper,clusters=5",
        "PCA+kM+HC with shared axes": "pca-kmeans-hc:as=paper,basis=public,clusters=5",
        **fedsems(5),
        "FLT (Enc2), our default": f"flt:encoder={enc2},finetune={FINETUNE}",
    }


def _scenario_table(
    study: Study, table: str, setting: str, encoders: tuple[str, str], paper: Paper, trained: Paper
) -> Findings:
    """Table 1 or 2, and 7 or 8 (`trained`), with the settings that the paper prints for it."""
    printed = PAPERS["flt"].tables[table]
    options = {**printed.training, **printed.federation}
    if not study.full:
        options["rounds"] = QUICK_ROUNDS
    options["evaluate_every"] = options["rounds"]
    files = [trained_encoder(study, source) for source in encoders]
    rows = rows_of(study, setting, scenario_methods(table, *files), paper, trained, **options)
    notes = [PCA_NOTE, FEDSEM_NOTE, DROPOUT_NOTE, f"Every method has the settings of flt:as={table}."]
    notes.append(
        f"Enc1 is trained on {encoders[0]} (the paper: EMNIST, CIFAR20), Enc2 on {encoders[1]} and fine-tuned."
    )
    if not study.full:
        notes.append(f"Quick: {QUICK_ROUNDS} rounds, encoders trained for 2 epochs.")
    return Findings(rows, notes)


@recipe("flt-table1", "FLT, table 1: scenario 1 on MNIST, disjoint classes, accuracy and fairness")
def table1(study: Study) -> Findings:
    """FLT as published reads the number of clusters from the dendrogram of the relatedness."""
    return _scenario_table(study, "table1", "MNIST", MNIST_ENCODERS, TABLE_1_MNIST, TABLE_7_MNIST)


@recipe("flt-table2", "FLT, table 2: scenario 2 on MNIST, neighbours share a class, accuracy and fairness")
def table2(study: Study) -> Findings:
    """FLT as published is given the number of clusters, five."""
    return _scenario_table(study, "table2", "MNIST", MNIST_ENCODERS, TABLE_2_MNIST, TABLE_8_MNIST)


@recipe("flt-table1-cifar", "FLT, table 1: scenario 1 on CIFAR-10, at the paper's size only")
def table1_cifar(study: Study) -> Findings:
    """As table 1, with LEAF's network and five local epochs."""
    return _scenario_table(study, "table1-cifar", "CIFAR-10", _cifar_encoders(study), TABLE_1_CIFAR, TABLE_7_CIFAR)


@recipe("flt-table2-cifar", "FLT, table 2: scenario 2 on CIFAR-10, at the paper's size only")
def table2_cifar(study: Study) -> Findings:
    """As table 2, with LEAF's network and five local epochs."""
    return _scenario_table(study, "table2-cifar", "CIFAR-10", _cifar_encoders(study), TABLE_2_CIFAR, TABLE_8_CIFAR)


def _cifar_encoders(study: Study) -> tuple[str, str]:
    return "cifar10", "cifar100" if has(study, "cifar100") else "fashion-mnist"


@recipe("flt-table3", "FLT, table 3: scenario 3, natural clients, the relatedness graph against clusters")
def table3(study: Study) -> Findings:
    """LEAF's FEMNIST where the data folder has it, else MNIST by its writers."""
    leaf = has(study, "femnist")
    encoder = trained_encoder(study, "fashion-mnist")
    flt = f"flt:as=paper,encoder={encoder},finetune={FINETUNE}"
    methods = {
        "FedAvg": "fedavg",
        "PCA+kM+HC (C=3)": "pca-kmeans-hc:least=1,clusters=3",
        "IFCA": "ifca:k=3,init=random",
        "FedSEM": "fedsem:clusters=5",
        "FLT": f"{flt},case=1",
        **{f"FLT (C={c})": f"{flt},clusters={c}" for c in (2, 3, 5)},
    }
    rows = []
    for model, rounds in {"mlp": 1000, "cnn-leaf": 100}.items() if study.full else {"mlp": 50}.items():
        rows += rows_of(
            study,
            f"{'FEMNIST' if leaf else 'MNIST writers'} {model}",
            methods,
            TABLE_3[model] if leaf else {},
            TABLE_9[model] if leaf else {},
            grouped=False,
            scenario="flt-s3-femnist" if leaf else "flt-s3",
            model=model,
            rounds=rounds,
            evaluate_every=rounds,
        )
    notes = [
        PCA_NOTE,
        DROPOUT_NOTE,
        "IFCA runs as many rounds as the others, without the paper's 500 rounds of FedAvg before it.",
    ]
    if not leaf:
        notes.append("LEAF's FEMNIST is not in the data folder: MNIST by 200 writers instead, so no paper numbers.")
    if not study.full:
        notes.append("Quick: MLP only, 50 rounds instead of 1000.")
    return Findings(rows, notes)


@recipe("flt-table4", "FLT, table 4: scenario 4, ten groups of all sizes, thousands of clients")
def table4(study: Study) -> Findings:
    """EMNIST where the data folder has it, else MNIST and Fashion-MNIST as 20 classes."""
    emnist = has(study, "emnist")
    encoder = trained_encoder(study, "fashion-mnist")
    flt = f"flt:signature=centroids(least=1),encoder={encoder},finetune={FINETUNE}"
    methods = {
        "FedAvg": "fedavg",
        "PCA+kM+HC": "pca-kmeans-hc:least=1,clusters=10",
        "PCA+kM+HC with shared axes": "pca-kmeans-hc:least=1,basis=public,clusters=10",
        **fedsems(10),
        "FLT": flt,
    }
    sizes = {"mlp": 2400, "cnn-leaf": 600} if study.full else {"mlp": 240}
    rounds = 100 if study.full else 20
    rows = []
    for model, clients in sizes.items():
        rows += rows_of(
            study,
            f"{'EMNIST' if emnist else 'MNIST + Fashion-MNIST'} {model}, M={clients}",
            methods,
            TABLE_4[model] if emnist else {},
            TABLE_10[model] if emnist else {},
            scenario="flt-s4-emnist" if emnist else "flt-s4",
            model=model,
            clients=clients,
            rounds=rounds,
            evaluate_every=rounds,
        )
    given = "FLT decides the number of clusters by held-out benefit; the other methods are given it (ten)."
    notes = [PCA_NOTE, FEDSEM_NOTE, DROPOUT_NOTE, given]
    if not emnist:
        notes.append(
            "EMNIST is not in the data folder: MNIST and Fashion-MNIST as 20 classes, two per group: no paper numbers. "
            "Enc2's Fashion-MNIST then covers half of the clients' classes."
        )
    if not study.full:
        notes.append("Quick: MLP, 240 clients (24 per group), 20 rounds.")
    return Findings(rows, notes)


@recipe("flt-table5", "FLT, table 5: more clients, more participation, more rounds (scenario 2)")
def table5(study: Study) -> Findings:
    """CIFAR-10 as in the paper at full size; quick takes MNIST."""
    source = "cifar100" if has(study, "cifar100") else "fashion-mnist"
    encoder = trained_encoder(study, source if study.full else "fashion-mnist")
    methods = {
        "FedSEM": "fedsem:clusters=5",
        "FLT": f"flt:as=paper,encoder={encoder},finetune={FINETUNE},clusters=5",
    }
    rows = []
    for clients in (100, 500) if study.full else (100,):
        for rho in (0.2, 0.5):
            for column, (label, method) in enumerate(methods.items()):
                options: dict[str, Any] = {
                    "scenario": "flt-s2-cifar" if study.full else "flt-s2",
                    "clients": clients,
                    "participation": rho,
                    "rounds": 100,
                    "evaluate_every": 50,
                }
                cells = [
                    measured(study, f"M={clients}-rho={rho}-{label}", method, seed, **options) for seed in study.seeds
                ]
                for place, rounds in enumerate((50, 100)):
                    paper = TABLE_5[clients, rho, rounds][column] if study.full else None
                    where = f"M={clients}, ρ={rho}, T={rounds}, {label}"
                    rows.append(Row(where, "test accuracy %", [c["curve"][place][1] for c in cells], paper))
    notes = [f"FLT's encoder is trained on {Path(encoder).stem} and fine-tuned for {FINETUNE} epochs by the clients."]
    if not study.full:
        notes.append("Quick: MNIST instead of CIFAR-10, M=100 only, so no paper numbers.")
    return Findings(rows, notes)
