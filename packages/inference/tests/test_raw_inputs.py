"""Exports that take raw cells and pixels answer what `predict` answers; images are read wherever samples are."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import coterie
from coterie.errors import ConfigError, DataError

COLOURS = {"dark": 60, "light": 190}
ALONE = """
import csv, sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
rows = list(csv.DictReader(open(sys.argv[2], encoding="utf-8")))
names = session.get_modelmeta().custom_metadata_map["columns"].split("\\t")
cells = np.array([[row[name] for name in names] for row in rows], dtype=object)
assert "torch" not in sys.modules and "coterie" not in sys.modules
for answer in zip(*session.run(None, {"cells": cells})):
    print(*[part if isinstance(part, str) else " ".join(map(repr, np.atleast_1d(part).tolist())) for part in answer])
"""


def write_tables(folder: Path) -> None:
    """Three sites with numbers, categories, booleans and gaps in each."""
    random = np.random.default_rng(0)
    folder.mkdir()
    for site in range(3):
        with open(folder / f"site{site}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "dose", "ward", "smoker", "cost", "ill"])
            for i in range(120):
                age, dose = random.normal(60, 12), random.normal(5, 2)
                ward = random.choice(["Küste", "icu", "surgery"], p=[0.6, 0.3, 0.1])
                cells = [round(age, 1), "NA" if i % 7 == 0 else round(dose, 3), "" if i % 9 == 0 else ward]
                smoker = random.choice(["true", "FALSE"])
                ill = "yes" if age / 12 - dose + random.normal() > 0 else "no"
                writer.writerow([*cells, smoker, round(100 * age + 50 * dose), ill])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "sites"
    write_tables(folder)
    return folder


@pytest.fixture(scope="module", params=["ill", "cost"])
def on_tables(request: pytest.FixtureRequest, tables: Path, tmp_path_factory: pytest.TempPathFactory) -> coterie.Result:
    out = tmp_path_factory.mktemp("run") / request.param
    other = {"ill": "cost", "cost": "ill"}[request.param]
    options: dict[str, Any] = {"drop": other, "task": "regression" if request.param == "cost" else None}
    return coterie.run("fedavg", data=f"{tables}/*.csv", label=request.param, rounds=3, out=str(out), **options)


def test_onnxruntime_alone_answers_raw_rows_as_predict_does(
    on_tables: coterie.Result, tables: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    path = on_tables.export(tmp_path / "model.onnx", client="site0")
    rows = tables / "site1.csv"
    done = subprocess.run([sys.executable, "-c", ALONE, path, rows], capture_output=True, text=True, check=True)
    said = [line.split() for line in done.stdout.splitlines()]
    expected = on_tables.predict(rows, client="site0")
    assert len(said) == len(expected) == 120
    if expected.dtype.kind == "U":
        assert [line[0] for line in said] == expected.tolist()
        chances = on_tables.predict(rows, client="site0", probabilities=True)
        assert np.allclose([[float(part) for part in line[1:]] for line in said], chances, atol=1e-6)
    else:
        assert np.allclose([float(line[0]) for line in said], expected, rtol=1e-6)


def test_onnx_takes_a_space_around_a_cell_and_refuses_what_is_no_number(
    on_tables: coterie.Result, tables: Path, tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(on_tables.export(tmp_path / "model.onnx", client="site0"))
    rows = [["61.5", "4.25", "icu", "true"], [" 61.5 ", "4.25 ", " icu", "true "], ["61,5", "4.25", "icu", "true"]]
    plain, spaced = (session.run(None, {"cells": np.array([row], dtype=object)}) for row in rows[:2])
    assert all(np.array_equal(one, other) for one, other in zip(plain, spaced, strict=True))
    with pytest.raises(Exception, match="Cast"):
        session.run(None, {"cells": np.array([rows[2]], dtype=object)})


@pytest.mark.filterwarnings("error::UserWarning")
def test_torchscript_answers_raw_rows_as_predict_does(on_tables: coterie.Result, tables: Path, tmp_path: Path) -> None:
    path = on_tables.export(tmp_path / "model.ts", client="site0")
    rows = tables / "site1.csv"
    names = ["age", "dose", "ward", "smoker"]
    with open(rows, encoding="utf-8") as file:
        cells = [[row[name] for name in names] for row in csv.DictReader(file)]
    answer = torch.jit.load(path)(cells)
    expected = on_tables.predict(rows, client="site0")
    if expected.dtype.kind == "U":
        assert answer[0] == expected.tolist()
        assert np.allclose(answer[1].detach(), on_tables.predict(rows, client="site0", probabilities=True), atol=1e-6)
    else:
        assert np.allclose(answer.detach(), expected, rtol=1e-6)


def write_images(folder: Path, n: int, mode: str) -> None:
    """A folder for each class, with noisy images of dark and of light colours."""
    random = np.random.default_rng(n)
    for kind, level in COLOURS.items():
        (folder / kind).mkdir(parents=True)
        for i in range(n):
            size = (8, 8) if mode == "L" else (8, 8, 3)
            pixels = np.clip(random.normal(level, 60, size), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{i:03d}.png")


@pytest.fixture(scope="module", params=["L", "RGB"])
def on_images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[coterie.Result, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    for client in "ab":
        write_images(folder / "sites" / client, 20, request.param)
    write_images(folder / "new" / "c", 50, request.param)
    out = str(folder / "run")
    return coterie.run("cfl", data=str(folder / "sites"), rounds=3, model="mlp:hidden=8", out=out), folder / "new"


def test_images_are_read_by_predict_evaluate_assign_and_drift(on_images: tuple[coterie.Result, Path]) -> None:
    result, new = on_images
    kinds = ["dark"] * 50 + ["light"] * 50
    found = result.predict(new / "c", client="a")
    assert found.tolist() == [result.predict(file, client="a")[0] for file in sorted((new / "c").rglob("*.png"))]
    accuracy = result.evaluate(new / "c", client="a")["accuracy"]
    assert accuracy == pytest.approx(np.mean(found == np.array(kinds)))
    assert result.predict(new / "c" / "dark", client="a").tolist() == found[:50].tolist()
    assert set(result.assign(new)) == {"c"}
    assert set(result.assign(new / "c")) == {"c"}
    assert result.drift("a", new / "c").client == "a"
    with pytest.raises(DataError, match=r"cannot be read: give a \.npz"):
        result.predict(Path(__file__), client="a")


def test_exports_answer_pixels_as_predict_does(on_images: tuple[coterie.Result, Path], tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    result, new = on_images
    files = sorted((new / "c").rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    expected, chances = (result.predict(new / "c", client="a", probabilities=p) for p in (False, True))
    session = runtime.InferenceSession(result.export(tmp_path / "model.onnx", client="a"))
    labels, probabilities = session.run(None, {"pixels": pixels})
    assert len(files) == 100
    assert labels.tolist() == expected.tolist()
    assert np.allclose(probabilities, chances, atol=1e-6)
    names, again = torch.jit.load(result.export(tmp_path / "model.ts", client="a"))(torch.from_numpy(pixels))
    assert names == expected.tolist()
    assert np.allclose(again.detach(), chances, atol=1e-6)


def test_unknown_endings_are_refused_and_a_card_lies_beside_every_model(
    on_tables: coterie.Result, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"m\.h5: no format ends in '\.h5': expected \.onnx"):
        on_tables.export(tmp_path / "m.h5", client="site0")
    assert not list(tmp_path.iterdir())
    on_tables.export(tmp_path / "m.h5", client="site0", format="state_dict")
    on_tables.export(tmp_path / "m.pt", client="site0")
    card = (tmp_path / "m.pt.md").read_text()
    assert card.startswith("# Model of client site0: ")
    row = on_tables.record_of("site0")
    assert f"loss of site0 on its {row.test_samples} test samples: {row.loss:.4g}" in card
    assert "measure it on your own data" in card
