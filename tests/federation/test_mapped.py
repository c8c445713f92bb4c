"""Data folders that stay on disk: .npy files as they lie, and archives that are larger than the memory allowed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.errors import DataError
from coterie.federation import PARTS, Federation
from coterie.federation.fingerprint import fingerprint

MB = 10**6
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def labelled(n: int, inputs: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(n, inputs)).astype(np.float32), random.integers(0, 3, n)


def save(folder: Path, client: str, **arrays: np.ndarray) -> None:
    for name, values in arrays.items():
        np.save(folder / f"{client}.{name}.npy", values)


def mappings(end: str) -> list[range]:
    """The addresses at which files whose name ends so are mapped."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(end):
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            found.append(range(low, high))
    return found


def test_npy_files_are_divided_as_they_lie(tmp_path: Path) -> None:
    x, y = labelled(20)
    save(tmp_path, "ann.lee", x=x, y=y, group=np.array(1))
    save(tmp_path, "bob", x_train=x[:5], y_train=y[:5], x_test=x[5:], y_test=y[5:], group=np.array([0]))
    save(tmp_path, "cid", x_train=x, y_train=y)
    np.savez(tmp_path / "dan.npz", x=x, y=y)
    np.save(tmp_path / "notes.npy", x)  # nobody's
    made = Federation.from_folder(tmp_path, splits=(0.5, 0.2, 0.3))
    assert made.ids == ("dan", "ann.lee", "bob", "cid")
    assert [client.group for client in made] == [None, 1, 0, None]
    for client in ("ann.lee", "cid"):
        for part, rows in zip(PARTS, (slice(0, 10), slice(10, 14), slice(14, 20)), strict=True):
            assert made[client].part(part).x.tolist() == x[rows].tolist()
            assert made[client].part(part).y.tolist() == y[rows].tolist()
    assert made["bob"].train.x.tolist() == x[:5].tolist()
    assert (len(made["bob"].validation), len(made["bob"].test)) == (0, 15)
    assert made["dan"].train.x.tolist() != x[:10].tolist()  # archives are divided at random
    assert len(Federation.from_folder(tmp_path, splits=(1, 0, 0))["ann.lee"].train) == 20


@linux
def test_large_npy_files_stay_on_disk_and_are_never_written(tmp_path: Path) -> None:
    x, y = labelled(5000)
    save(tmp_path, "a", x=x, y=y)
    client = Federation.from_folder(tmp_path)["a"]
    for part in PARTS:
        values = client.part(part).x
        assert any(values.data_ptr() in place for place in mappings("a.x.npy"))
        values[:] = 7
    assert np.array_equal(np.load(tmp_path / "a.x.npy"), x)


X, Y = labelled(30)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"eve\.\*\.npy: expected arrays x and y.*found x:"),
        ({"x": X, "y": Y, "x_val": X}, "found x, x_val, y:"),
        ({"x": X.astype(np.float64), "y": Y}, r"eve\.x\.npy: float64 inputs .* save them as float32"),
        ({"x": X.astype(np.uint8), "y": Y}, r"eve\.x\.npy: uint8 inputs"),
        ({"x": X[:4], "y": Y}, "client 'eve', train: x has 4 samples and y has 30"),
        ({"x": X, "y": Y[:4]}, "client 'eve', train: x has 30 samples and y has 4"),
        ({"x": np.array(X[0, 0]), "y": np.array(1)}, "client 'eve', train"),
        ({"x": X, "y": Y, "group": np.array([1, 2])}, r"eve\.group\.npy: group is int64"),
        ({"x": X, "y": np.sort(Y)}, "client 'eve': its labels lie in rising order"),
        ({"x": X, "y": np.array([object()] * 30)}, r"eve\.y\.npy: not a readable"),
    ],
)
def test_bad_npy_files_are_named_in_one_line(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    save(tmp_path, "eve", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        Federation.from_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_rising_order_is_no_matter_where_it_does_not_harm(tmp_path: Path) -> None:
    save(tmp_path, "parts", x_train=X, y_train=np.sort(Y), x_test=X, y_test=Y)
    save(tmp_path, "one-label", x=X, y=np.ones(30, int))
    save(tmp_path, "few", x=X[:8], y=np.arange(8) // 3)
    assert len(Federation.from_folder(tmp_path)) == 3
    save(tmp_path, "all-to-train", x=X, y=np.sort(Y))
    assert len(Federation.from_folder(tmp_path, splits=(1, 0, 0))["all-to-train"].train) == 30


def archives(folder: Path, *, as_bytes: bool = False) -> None:
    for i in range(6):
        x, y = labelled(40 + i, seed=i)
        values = (255 * np.abs(x)).astype(np.uint8) if as_bytes else x.astype(np.float64)
        np.savez_compressed(folder / f"c{i}.npz", x=values, y=y, group=i)


def same(a: Federation, b: Federation) -> bool:
    return a.groups == b.groups and all(
        torch.equal(getattr(c.part(part), what), getattr(d.part(part), what))
        for c, d in zip(a, b, strict=True)
        for part in PARTS
        for what in ("x", "y")
    )


@linux
def test_archives_beyond_memory_hold_the_same_numbers_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archives(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    loaded, bounded = Federation.from_folder(tmp_path), Federation.from_folder(tmp_path, memory_bytes=4 * 2500)
    assert same(loaded, bounded)
    assert fingerprint(loaded) == fingerprint(bounded)
    assert not list(scratch.iterdir())
    places = mappings("(deleted)")
    on_disk = [any(client.train.x.data_ptr() in place for place in places) for client in bounded]
    assert on_disk == [False, False, True, True, True, True]  # a client has about a thousand bytes
    assert all(client.train.x.data_ptr() % 64 == 0 for client in bounded)


def test_a_run_does_not_depend_on_where_the_data_lies(tmp_path: Path) -> None:
    archives(tmp_path, as_bytes=True)
    plain, bounded = (
        coterie.run("fedavg", data=str(tmp_path), rounds=2, batch_size=8, model="mlp", workers=1, memory=memory)
        for memory in (None, "1KB")
    )
    for a, b in zip(plain.models, bounded.models, strict=True):
        assert torch.equal(a, b)


@linux
def test_a_disk_that_is_full_or_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    archives(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(DataError, match=r"cannot be kept there \(File too large\): set TMPDIR"):
            Federation.from_folder(tmp_path, memory_bytes=1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere: .* \(No such file or directory\): set TMPDIR"):
        Federation.from_folder(tmp_path, memory_bytes=1000)


SCRIPT = """
import json, os, sys, time, torch, coterie

def train(folder, memory):
    coterie.run(data=folder, model="logistic", rounds=1, batch_size=50, workers=1, device="cpu", memory=memory)

def peak(folder, memory):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(folder, memory)
            code = 0
        finally:
            os._exit(code)
    seen = []
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        status = open(f"/proc/{pid}/status").read()
        seen += [1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")]
        time.sleep(0.003)
    return max(seen) - seen[0]

torch.set_num_threads(1)
print(json.dumps([peak(*case) for case in json.loads(sys.argv[1])]))
"""


def peaks(*cases: tuple[Path, str | None]) -> list[int]:
    """The most memory that the system could not have taken back during each run, in bytes beyond what it began with.

    A run is given by its folder and its bound; each has a process of its own.
    """
    given = json.dumps([(str(folder), memory) for folder, memory in cases])
    done = subprocess.run([sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # where a run that fails would tell of it
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.long
@linux
def test_training_on_data_larger_than_the_memory_it_takes(tmp_path: Path) -> None:
    """200 MB of inputs: an archive loaded as ever takes that much, which shows that the measure can fail."""
    x = np.random.default_rng(0).random((2500, 1000), dtype=np.float32)
    y = np.arange(2500) % 3
    for kind in ("npy", "npz"):
        (tmp_path / kind).mkdir()
    for i in range(20):
        save(tmp_path / "npy", str(i), x=x, y=y)
        np.savez(tmp_path / "npz" / f"{i}.npz", x=x, y=y)
    mapped, bounded, loaded = peaks((tmp_path / "npy", None), (tmp_path / "npz", "40MB"), (tmp_path / "npz", None))
    assert mapped < 110 * MB  # one client's 10 MB, several times
    assert bounded < 110 * MB
    assert loaded > 190 * MB
