"""FLT's recipes on the embedded digits, with few clients and rounds: all rows, each beside the paper's number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie import Result
from coterie_recipes import Study, flt, flt_cifar, flt_figures, flt_tables, reproduce

pytest.importorskip("umap")

DIGITS = {
    "flt-s1": "flt-s1-digits",
    "flt-s2": "flt-s2-digits",
    "flt-s3": "digits-dirichlet",
    "flt-s4": "flt-s4-digits",
    "flt-s1-cifar": "flt-s1-digits",
    "flt-s2-cifar": "flt-s2-digits",
}
SMALL = {"clients": 20, "rounds": 2, "evaluate_every": 1, "participation": 0.6, "model": "mlp", "workers": 1}


def quickly(method: str) -> str:
    """The method with an encoder that is fine-tuned for an epoch, where it was to be for five."""
    if method.startswith("flt:as=table") and "finetune" not in method:
        return f"{method},finetune=1"
    return method.replace("finetune=5", "finetune=1")


def small_run(method: str, *, scenario: str, **options: Any) -> Result:
    """The run that a recipe asks for, on digits and over in a second."""
    return coterie.run(quickly(method), scenario=DIGITS[scenario], **options | SMALL)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    for module in (flt, flt_figures):
        monkeypatch.setattr(module, "run", small_run)
    for module in (flt_tables, flt_figures, flt_cifar):
        monkeypatch.setattr(module, "trained_encoder", lambda study, source: "default")
    return Study(tmp_path / "out", data_dir=str(tmp_path))


def by_name(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["setting"], row["measure"]): row for row in results["rows"]}


@pytest.mark.parametrize(("name", "fedsem", "flt_enc2"), [("flt-table1", 98.01, 97.97), ("flt-table2", 94.14, 97.37)])
def test_tables_1_and_2_have_every_method_beside_its_number(
    study: Study, name: str, fedsem: float, flt_enc2: float
) -> None:
    rows = by_name(reproduce(name, study))
    accuracy = {where.removeprefix("MNIST, "): row for (where, what), row in rows.items() if what == "test accuracy %"}
    assert set(accuracy) == {
        "FedAvg",
        "local",
        "PCA+kM+HC",
        "PCA+kM+HC with shared axes",
        "FedSEM",
        "FedSEM of the round's models, random start",
        "FedSEM of the round's models, k-means start",
        "FLT (Enc1)",
        "FLT (Enc2)",
        "FLT (Enc2), our default",
    }
    assert accuracy["FLT (Enc2), our default"]["paper"] is None
    assert accuracy["FedSEM"]["paper"] == fedsem
    assert accuracy["FedSEM of the round's models, k-means start"]["paper"] is None
    assert accuracy["FLT (Enc2)"]["paper"] == flt_enc2
    assert all(0 < row["ours"]["mean"] <= 100 for row in accuracy.values())
    assert rows["MNIST, FLT (Enc1)", "ARI with the hidden groups"]["ours"]["mean"] <= 1


def test_both_scenarios_on_cifar_stand_beside_the_papers_numbers(study: Study) -> None:
    rows = by_name(reproduce("flt-cifar", study))
    assert rows["S1, FLT (Enc1)", "test accuracy %"]["paper"] == 87.11
    assert rows["S2, FedAvg", "test accuracy %"]["paper"] == 52.77
    assert rows["S2, local", "train accuracy %"]["paper"] == 100.0
    assert all(0 < row["ours"]["mean"] <= 100 for (_, what), row in rows.items() if what == "test accuracy %")


def test_table_3_compares_the_graph_with_clusters_of_three_sizes(study: Study) -> None:
    rows = by_name(reproduce("flt-table3", study))
    for label in ("FLT", "FLT (C=2)", "FLT (C=3)", "FLT (C=5)", "IFCA"):
        assert rows[f"MNIST writers mlp, {label}", "test accuracy %"]["paper"] is None


def test_table_4_shows_fedsem_in_all_three_ways(study: Study) -> None:
    rows = by_name(reproduce("flt-table4", study))
    where = "MNIST + Fashion-MNIST mlp, M=240"
    for label in ("FedSEM", *(f"FedSEM of the round's models, {way} start" for way in ("random", "k-means")), "FLT"):
        assert 1 <= rows[f"{where}, {label}", "clusters"]["ours"]["mean"] <= 20


def test_table_5_reads_the_middle_and_the_end_of_a_run(study: Study) -> None:
    rows = by_name(reproduce("flt-table5", study))
    assert {(rho, rounds) for rho in (0.2, 0.5) for rounds in (50, 100)} == {
        (float(where.split("ρ=")[1].split(",")[0]), int(where.split("T=")[1].split(",")[0])) for where, _ in rows
    }


def test_table_6_counts_what_the_formula_says(tmp_path: Path) -> None:
    for row in reproduce("flt-table6", Study(tmp_path / "out", workers=1))["rows"]:
        formula = float(row["paper"].split()[0])
        assert row["ours"]["mean"] == pytest.approx(formula, rel=0.01)


def test_relatedness_is_drawn(study: Study) -> None:
    rows = by_name(reproduce("flt-relatedness", study))
    assert rows["S1", "clusters found"]["ours"]["mean"] >= 1
    assert (study.out / "relatedness-S4.png").stat().st_size > 1000


def test_convergence_is_drawn(study: Study) -> None:
    rows = by_name(reproduce("flt-convergence", study))
    assert rows["S2, FLT", "rounds to 98 % of its best"]["ours"]["mean"] in (1, 2)
    assert (study.out / "convergence-S1.png").stat().st_size > 1000
