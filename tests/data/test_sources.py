"""Sources: every set is made from files in its published layout; what is missing or wrong says what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from published_files import cifar_arrays, cifar_pickle, idx_bytes, leaf_bytes, write, write_idx_set

from coterie.data.catalog import BY_HAND, CATALOG, TERMS
from coterie.data.pools import windows
from coterie.data.sources import (
    SOURCES,
    Source,
    TableSource,
    TextSource,
    available,
    data_folder,
    load_source,
    load_table_source,
    load_text_source,
    source_names,
)
from coterie.errors import DataError


def test_a_table_of_patients_is_there_without_files() -> None:
    pool = load_source("breast-cancer", Path("nowhere"))
    assert (pool.x.shape[1:], len(pool.y) + len(pool.y_test), pool.classes) == ((1, 1, 30), 569, 2)
    assert np.allclose(pool.x.mean(axis=0), 0, atol=1e-4)
    assert np.allclose(pool.x.std(axis=0), 1, atol=1e-4)
    assert abs(pool.y_test.mean() - pool.y.mean()) < 0.01


def test_digits_are_always_there_and_split_the_same_way() -> None:
    pool, again = load_source("digits"), load_source("digits", Path("nowhere"))
    assert pool.x.shape == (1438, 1, 8, 8)
    assert pool.x_test.shape == (359, 1, 8, 8)
    assert np.array_equal(pool.x, again.x)
    assert pool.x.dtype == np.float32
    assert (pool.x.min(), pool.x.max()) == (0, 1)
    share = np.bincount(pool.y_test) / (np.bincount(pool.y) + np.bincount(pool.y_test))
    assert np.abs(share - 0.2).max() < 0.005


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_sets(tmp_path: Path, name: str, folder: str, ending: str) -> None:
    arrays = write_idx_set(tmp_path / folder, ending=ending)
    pool = load_source(name, tmp_path)
    assert pool.name == name
    assert np.array_equal(pool.x[:, 0], arrays["train-images"])
    assert np.array_equal(pool.y_test, arrays["t10k-labels"])
    batch = pool.images([3, 1])
    assert batch.dtype == torch.float32
    assert torch.equal(batch[1, 0], torch.from_numpy(arrays["train-images"][1] / np.float32(255)))
    assert pool.images(part="test").shape == (10, 1, 28, 28)
    assert pool.labels([2], part="test").tolist() == [arrays["t10k-labels"][2]]


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    prefixes = ("emnist-balanced-train", "emnist-balanced-test")
    arrays = write_idx_set(tmp_path / "EMNIST/raw/gzip", prefixes, ".gz", classes=47)
    pool = load_source("emnist", tmp_path)
    assert pool.x[4, 0, 2, 7] == arrays["emnist-balanced-train-images"][4, 7, 2]
    assert pool.classes == 47


def test_both_sets_as_one(tmp_path: Path) -> None:
    digits = write_idx_set(tmp_path / "MNIST/raw", seed=1)
    clothes = write_idx_set(tmp_path / "FashionMNIST/raw", seed=2)
    pool = load_source("mnist+fashion", tmp_path)
    assert pool.classes == 20
    assert np.array_equal(pool.y, np.concatenate([digits["train-labels"], clothes["train-labels"] + 10]))
    assert np.array_equal(pool.x_test[10:, 0], clothes["t10k-images"])


def write_writers(root: Path, train: object, test: object) -> None:
    for part, labels, rows in (("train", train, 30), ("test", test, 25)):
        table = np.zeros((rows, 8), dtype=np.int32)
        classes = np.asarray(labels)
        table[: len(classes), 0] = classes
        table[:, 2] = 2100 + np.arange(rows) // 5
        write(root / f"qmnist/qmnist-{part}-labels-idx2-int.gz", idx_bytes(table))


def test_writers(tmp_path: Path) -> None:
    arrays = write_idx_set(tmp_path / "MNIST/raw")
    write_writers(tmp_path, arrays["train-labels"], arrays["t10k-labels"])
    pool = load_source("mnist-writers", tmp_path)
    assert pool.writer is not None
    assert pool.writer_test is not None
    assert pool.writer.tolist() == [2100 + i // 5 for i in range(30)]
    assert pool.writer_test.tolist() == [2100 + i // 5 for i in range(10)]
    write_writers(tmp_path, (arrays["train-labels"] + 1) % 10, arrays["t10k-labels"])
    with pytest.raises(DataError, match=r"qmnist-train-labels.*differ from MNIST's labels in 30 of 30"):
        load_source("mnist-writers", tmp_path)


@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar10(tmp_path: Path, form: str) -> None:
    batches = [cifar_arrays(4, 10, seed=i) for i in range(6)]
    for name, (pixels, labels) in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], batches, strict=True):
        if form == "binary":
            content = np.concatenate([labels[:, None], pixels], axis=1).tobytes()
            write(tmp_path / f"cifar-10-batches-bin/{name}.bin", content)
        else:
            write(tmp_path / f"cifar-10-batches-py/{name}", cifar_pickle(pixels, labels, "labels"))
    pool = load_source("cifar10", tmp_path)
    assert np.array_equal(pool.x[8:12], batches[2][0].reshape(4, 3, 32, 32))
    assert np.array_equal(pool.y_test, batches[5][1])
    red = pool.images([0])[0, 0, 0, 0].item()
    assert red == pytest.approx((batches[0][0][0, 0] / 255 - 0.4914) / 0.2470, abs=1e-5)


def test_cifar10_with_a_batch_cut_at_a_record(tmp_path: Path) -> None:
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels, labels = cifar_arrays(3 if name == "data_batch_4" else 4, 10, seed=i)
        content = np.concatenate([labels[:, None], pixels], axis=1).tobytes()
        write(tmp_path / f"cifar-10-batches-bin/{name}.bin", content)
    with pytest.raises(DataError, match=r"data_batch_4\.bin: holds 3 images"):
        load_source("cifar10", tmp_path)


def test_cifar100_uses_the_fine_labels(tmp_path: Path) -> None:
    for name, n in (("train", 5), ("test", 2)):
        pixels, labels = cifar_arrays(n, 100, seed=n)
        write(tmp_path / f"cifar-100-python/{name}", cifar_pickle(pixels, labels, "fine_labels"))
    python = load_source("cifar100", tmp_path)
    for name, n in (("train", 5), ("test", 2)):
        pixels, labels = cifar_arrays(n, 100, seed=n)
        content = np.concatenate([labels[:, None] // 5, labels[:, None], pixels], axis=1).tobytes()
        write(tmp_path / f"cifar-100-binary/{name}.bin", content)
    binary = load_source("cifar100", tmp_path)
    assert np.array_equal(python.y, binary.y)
    assert np.array_equal(python.x_test, binary.x_test)


def test_femnist_numbers_writers_over_both_parts(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (6, 784)).astype(np.uint8)
    write(tmp_path / "femnist/train/a.json", leaf_bytes({"f2": (pixels[:2], [5, 6])}))
    write(tmp_path / "femnist/train/b.json", leaf_bytes({"f0": (pixels[2:3], [7])}))
    write(tmp_path / "femnist/test/a.json", leaf_bytes({"f1": (pixels[3:5], [8, 9]), "f2": (pixels[5:], [61])}))
    pool = load_source("femnist", tmp_path)
    assert pool.y.tolist() == [5, 6, 7]
    assert pool.writer is not None
    assert pool.writer_test is not None
    assert pool.writer.tolist() == [2, 2, 0]
    assert pool.writer_test.tolist() == [1, 1, 2]
    assert np.array_equal(pool.x_test.reshape(3, 784), pixels[3:])
    write(tmp_path / "femnist/test/a.json", leaf_bytes({"f1": (pixels[3:5], [8, 62])}))
    with pytest.raises(DataError, match=r"test.a\.json: its labels run from 8 to 62"):
        load_source("femnist", tmp_path)


def test_wrong_idx_sets_name_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST/raw"
    write_idx_set(folder)
    write(folder / "train-labels-idx1-ubyte", idx_bytes(np.zeros(29, dtype=np.uint8)))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte: holds 29 labels for the 30 images"):
        load_source("mnist", tmp_path)
    write(folder / "train-labels-idx1-ubyte", idx_bytes(np.full(30, 10, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte: its labels run from 10 to 10, expected 0\.\.9"):
        load_source("mnist", tmp_path)
    write(folder / "train-images-idx3-ubyte", idx_bytes(np.zeros((30, 8, 8), dtype=np.uint8)))
    with pytest.raises(DataError, match="train-images-idx3-ubyte: its images are 8x8"):
        load_source("mnist", tmp_path)


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_a_missing_set_names_the_command(tmp_path: Path, name: str) -> None:
    loaders = {Source: load_source, TextSource: load_text_source, TableSource: load_table_source}
    load = loaders[type(SOURCES[name])]
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    assert f"coterie data fetch {name}`" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_of_a_set_is_named(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "mnist")
    (tmp_path / "mnist/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="mnist/t10k-labels-idx1-ubyte is missing"):
        load_source("mnist", tmp_path)


def test_unknown_and_misplaced_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'cifar10'"):
        load_source("cifr10", tmp_path)
    with pytest.raises(DataError, match="load_text_source"):
        load_source("ag-news", tmp_path)
    with pytest.raises(DataError, match="use load_source"):
        load_text_source("mnist", tmp_path)
    with pytest.raises(DataError, match="preprocess"):
        load_source("femnist", tmp_path)


def test_every_set_can_be_fetched_or_says_why_not() -> None:
    assert set(CATALOG) | set(BY_HAND) == set(source_names())


def test_available(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "MNIST/raw", ending=".gz")
    listing = {row.name: (row.present, row.detail) for row in available(tmp_path)}
    assert listing["digits"][0]
    assert listing["mnist"] == (True, str(tmp_path / "MNIST/raw"))
    assert listing["mnist+fashion"] == (False, "missing FashionMNIST/raw/train-images-idx3-ubyte and 3 more")
    assert [name for name, (present, _) in listing.items() if present] == ["digits", "breast-cancer", "mnist"]


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "named"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "named"
    monkeypatch.delenv("COTERIE_DATA")
    assert data_folder() == Path.home() / ".cache" / "coterie"


def test_ag_news_by_word(tmp_path: Path) -> None:
    write(
        tmp_path / "ag_news_csv/train.csv", b'"1","The cat","saw the dog"\n"4","the cat #39;s dog\\ran &lt;b&gt;off"\n'
    )
    write(tmp_path / "ag_news_csv/test.csv", b'"2","The zebra"\n')
    pool = load_text_source("ag-news", tmp_path)
    read = [" ".join(pool.vocabulary[t] for t in row) for row in pool.tokens]
    assert read == ["the cat . saw the dog <eos>", "the cat's dog ran off <eos>"]
    assert pool.vocabulary[:4] == ("<unk>", "<eos>", "the", "dog")
    assert pool.key.tolist() == [0, 3]
    assert pool.tokens_test[0].tolist() == [2, 0, 1]  # "zebra" is not a word of the training part
    assert len(load_text_source("ag-news", tmp_path, vocabulary_size=4).vocabulary) == 4
    with pytest.raises(DataError, match="at least 3"):
        load_text_source("ag-news", tmp_path, vocabulary_size=2)


PLAY = """ROMEO:
abcdefgh

JULIET:
xy: z
stu

ROMEO:
q

still Romeo
"""


def test_plays_by_speaker(tmp_path: Path) -> None:
    path = write(tmp_path / "shakespeare/tinyshakespeare.txt", PLAY.encode())
    pool = load_text_source("shakespeare", tmp_path)
    assert pool.keys == ("ROMEO", "JULIET")
    whole = [np.concatenate(pair) for pair in zip(pool.tokens, pool.tokens_test, strict=True)]
    romeo = "abcdefgh\nq\nstill Romeo\n"
    assert len(whole[0]) == len(romeo)
    assert "".join(pool.vocabulary[t] for t in pool.tokens[0]) == romeo[: len(pool.tokens[0])]
    assert len(pool.tokens[0]) == round(0.8 * len(romeo))
    with pytest.raises(DataError, match="raise it"):
        load_text_source("shakespeare", tmp_path, vocabulary_size=5)
    path.write_text("no names here")
    with pytest.raises(DataError, match="no speaker's name"):
        load_text_source("shakespeare", tmp_path)


def test_windows_by_hand() -> None:
    x, y = windows([np.arange(8)], 3)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert y.tolist() == [[1, 2, 3], [4, 5, 6]]
    x, y = windows([np.array([1, 2]), np.array([3])], 2)
    assert (x.tolist(), y.tolist()) == ([[1, 2]], [[2, 3]])
    assert windows([np.arange(3)], 3)[0].shape == (0, 3)
    assert windows([], 3)[0].shape == (0, 3)


def test_the_real_mnist_writers_where_they_are() -> None:
    if not {row.name: row.present for row in available()}["mnist-writers"]:
        pytest.skip("MNIST and QMNIST are not in the data folder (COTERIE_DATA)")
    pool = load_source("mnist-writers")
    assert pool.writer is not None
    assert pool.x.shape == (60_000, 1, 28, 28)
    assert len(np.unique(pool.writer)) == 539


def test_a_plain_file_wins_over_its_packed_copy(tmp_path: Path) -> None:
    arrays = write_idx_set(tmp_path / "MNIST/raw")
    (tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    assert np.array_equal(load_source("mnist", tmp_path).y, arrays["train-labels"])


def test_every_set_has_a_source_and_terms() -> None:
    assert set(TERMS) == {row.name for row in available()}
    assert all(row.terms for row in available())
