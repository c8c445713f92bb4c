"""Input that once ended in a traceback, a hang or gigabytes of memory: now exit 2 and one line."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie import Federation
from coterie.cli import main
from coterie.errors import DataError
from coterie_inference.samples import ModelShape, read_samples

LABELS = np.arange(20) % 2
ROWS = "x,z,y\n" + "".join(f"{i % 3},{i % 5},{i % 2}\n" for i in range(40))
MODELS = """
import torch
from torch import nn

class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 2)
    def forward(self, x):
        return self.layer(x.flatten(1)).sum()

class Empty(nn.Module):
    def __init__(self):
        super().__init__()
    def forward(self, x):
        return x.flatten(1)[:, :10]

class Buffers(Empty):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(10))
"""


def client(folder: Path, name: str, y: np.ndarray, x: np.ndarray | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    inputs = np.random.default_rng(0).normal(size=(len(y), 3)).astype(np.float32) if x is None else x
    np.savez(folder / name, x=inputs, y=y)
    return folder / name


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["run", "--method", "fedavg:weighting=uniform", "--rounds", "1", *words])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("coterie: ")]
    assert stop.value.code == 2
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("columns", [1, 2])
def test_labels_of_another_shape(tmp_path, capsys, columns):
    client(tmp_path, "a.npz", LABELS)
    client(tmp_path, "b.npz", np.stack([LABELS] * columns, 1))
    assert "b.npz, train: y has shape" in refused(capsys, "--data", str(tmp_path))
    pairs = [
        (torch.ones(6, 2), torch.tensor([0, 1] * 3)),
        (torch.ones(6, 2), torch.zeros(6, columns, dtype=torch.int64)),
    ]
    with pytest.raises(DataError, match=r"train\.y: shape"):
        Federation.from_tensors(pairs)


@pytest.mark.parametrize("ending", ["npz", "csv"])
def test_a_file_whose_name_is_no_text(tmp_path, capsys, ending):
    folder = tmp_path / "data"
    client(folder, "a.npz", LABELS)
    for file in (folder / "a.npz", folder / "a.csv"):
        if ending == "csv":
            file.unlink(missing_ok=True)
    name = os.fsencode(folder) + b"/\xff." + ending.encode()
    if ending == "csv":
        (folder / "a.csv").write_text(ROWS)
        Path(os.fsdecode(name)).write_text(ROWS)
    else:
        os.rename(os.fsencode(client(folder, "b.npz", LABELS)), name)
    words = ["--label", "y"] if ending == "csv" else []
    line = refused(capsys, "--data", str(folder), "--out", str(tmp_path / "out"), *words)
    assert "not text in UTF-8: rename" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("noise", ["1e-300", "1e300"])
def test_noise_without_an_epsilon(capsys, noise):
    assert f"dp_noise={float(noise)}" in refused(
        capsys, "--scenario", "digits-iid", "--clients", "8", "--dp-noise", noise
    )


def test_a_delta_that_lets_a_client_be_published(capsys):
    words = ("--scenario", "digits-iid", "--clients", "8", "--dp-noise", "1", "--dp-delta")
    for delta in ("0.9", "0.125"):
        assert "well below 1/8" in refused(capsys, *words, delta)


@pytest.mark.parametrize(
    ("model", "said"),
    [("Scalar", "one number for all its inputs"), ("Empty", "no parameters"), ("Buffers", "no parameters")],
)
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedem"])
def test_models_that_cannot_be_trained(tmp_path, monkeypatch, capsys, model, said, method):
    (tmp_path / "net.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    words = ("--scenario", "digits-iid", "--clients", "4", "--model", f"net.py:{model}", "--method", method)
    assert said in refused(capsys, *words)


@pytest.mark.parametrize("count", ["steps", "epochs", "rounds", "personalise"])
def test_counts_that_never_end(capsys, count):
    assert count in refused(capsys, "--scenario", "digits-iid", f"--{count}", str(10**30))


def test_an_image_that_is_a_pipe(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    for place in ("a/0", "a/1", "b/0", "b/1"):
        (tmp_path / place).mkdir(parents=True)
        image.new("L", (8, 8), 10).save(tmp_path / place / "1.png")
    os.mkfifo(tmp_path / "a" / "0" / "2.png")
    assert "2.png: not a regular file" in refused(capsys, "--data", str(tmp_path))


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
@pytest.mark.parametrize("name", ["b.csv", "b.npz", "b.x.npy"])
def test_a_file_that_never_ends(tmp_path, capsys, name, target):
    if target == "pipe":
        os.mkfifo(tmp_path / "pipe")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).symlink_to(target if target != "pipe" else tmp_path / "pipe")
    words = []
    if name.endswith("csv"):
        (folder / "a.csv").write_text(ROWS)
        words = ["--label", "y"]
    assert f"{name}: not a regular file" in refused(capsys, "--data", str(folder), *words)


@pytest.mark.parametrize("label", [2**63 - 1, 2**24])
def test_a_label_that_no_model_has_an_output_for(tmp_path, capsys, label):
    labels = LABELS.astype(np.int64)
    client(tmp_path, "a.npz", labels)
    client(tmp_path, "b.npz", np.where(np.arange(20) == 3, label, labels))
    line = refused(capsys, "--data", str(tmp_path))
    assert f"client 'b', train: label {label} is out of range" in line or f"label {label}" in line


@pytest.mark.parametrize(
    "spec",
    [
        *("fedem:components=", "fedrc:components=", "fedsoft:clusters=", "ifca:k=", "oneshot:k=", "fedsem:clusters="),
        *("fedcuau:clusters=", "pca-kmeans-hc:k=", "pca-kmeans-hc:components="),
    ],
)
def test_more_models_than_there_could_be(capsys, spec):
    words = ("--scenario", "xor", "--clients", "4", "--samples", "8", "--method", f"{spec}{10**30}")
    assert str(10**30) in refused(capsys, *words)


def test_labels_that_are_numbers_to_python_alone(tmp_path, capsys):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(ROWS.replace(",1\n", ",1_1\n").replace(",0\n", ",1_0\n"))
    line = refused(capsys, "--data", str(tmp_path), "--label", "y", "--regression")
    assert "which is no number: regression needs numbers" in line


def test_names_that_would_break_a_list_of_ids(tmp_path, capsys):
    client(tmp_path, "a\nb.npz", LABELS)
    assert "control character" in refused(capsys, "--data", str(tmp_path))


def test_a_folder_with_a_zero_byte_in_its_name(tmp_path, capsys):
    words = ("--scenario", "xor", "--clients", "4", "--samples", "8", "--out", str(tmp_path / "a\0b"))
    assert "cannot make the folder" in refused(capsys, *words)


def test_an_archive_that_does_not_fit_the_model_is_not_unpacked(tmp_path):
    shape = ModelShape((3,), 2, torch.float32)
    for name, sizes in {"x": ((20, 10**7), (20,)), "y": ((10**8, 3), (20,))}.items():
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for array, size in zip(("x.npy", "y.npy"), sizes, strict=True):
                with archive.open(array, "w", force_zip64=True) as member:
                    header = {"descr": "<f4", "fortran_order": False, "shape": size}
                    np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
                    member.write(bytes(2**22))
        tracemalloc.start()
        with pytest.raises(DataError, match=rf"{name}\.npz: (the inputs have shape|100000000 samples with 20 labels)"):
            read_samples(tmp_path / f"{name}.npz", shape)
        assert tracemalloc.get_traced_memory()[1] < 2**22
        tracemalloc.stop()


@pytest.mark.parametrize("what", ["x", "y", "group", "other"])
def test_an_archive_that_unpacks_to_gigabytes_is_refused_by_its_header(tmp_path, what):
    client(tmp_path, "a.npz", LABELS)
    arrays = {"x": np.ones((20, 3), np.float32), "y": LABELS}
    shape = {"x": (20, 10**7), "y": (10**8,), "group": (10**8,), "other": (10**8,)}[what]
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            if name != what:
                file = io.BytesIO()
                np.save(file, values)
                archive.writestr(f"{name}.npy", file.getvalue())
        with archive.open(f"{what}.npy", "w", force_zip64=True) as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
            member.write(bytes(2**22))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"b\.npz"):
        Federation.from_folder(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
