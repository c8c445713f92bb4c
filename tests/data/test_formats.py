"""Readers: what was written is read; what is cut, flipped, wrong or hostile is one error that names the file."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_files import cifar_arrays, cifar_pickle, idx_bytes, leaf_bytes, write

from coterie.data import formats
from coterie.errors import DataError


@pytest.mark.parametrize("name", ["a-idx3-ubyte", "a-idx3-ubyte.gz"])
def test_idx_bytes(tmp_path: Path, name: str) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    read = formats.read_idx(write(tmp_path / name, idx_bytes(values)), np.uint8, 3)
    assert read.dtype == np.uint8
    assert np.array_equal(read, values)


def test_idx_integers(tmp_path: Path) -> None:
    values = np.array([[1, -2], [70_000, 2**31 - 1]], dtype=np.int32)
    read = formats.read_idx(write(tmp_path / "a-idx2-int", idx_bytes(values)), np.int32, 2)
    assert read.dtype == np.int64
    assert np.array_equal(read, values)


def test_every_cut_and_every_extra_byte_of_an_idx_file_is_noticed(tmp_path: Path) -> None:
    whole = idx_bytes(np.arange(12, dtype=np.uint8).reshape(3, 2, 2))
    for content in [whole[:end] for end in range(len(whole))] + [whole + b"\0"]:
        with pytest.raises(DataError, match="broken-idx3-ubyte"):
            formats.read_idx(write(tmp_path / "broken-idx3-ubyte", content), np.uint8, 3)


def test_a_cut_gzip_and_a_file_that_is_none(tmp_path: Path) -> None:
    packed = gzip.compress(idx_bytes(np.zeros((3, 28, 28), dtype=np.uint8)))
    for content in (packed[: len(packed) // 2], packed[:-4], b"<html>not found</html>"):
        path = tmp_path / "x.gz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.gz"):
            formats.read_idx(path, np.uint8, 3)


def test_another_idx_file_than_expected(tmp_path: Path) -> None:
    labels = write(tmp_path / "labels", idx_bytes(np.arange(5, dtype=np.uint8)))
    with pytest.raises(DataError, match="expected uint8 in 3"):
        formats.read_idx(labels, np.uint8, 3)
    with pytest.raises(DataError, match="expected int32 in 1"):
        formats.read_idx(labels, np.int32, 1)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        formats.read_bytes(tmp_path / "nothing")


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_binary(tmp_path: Path, label_bytes: int) -> None:
    pixels, labels = cifar_arrays(4, 10, seed=1)
    coarse = np.full((4, label_bytes - 1), 77, dtype=np.uint8)
    content = np.concatenate([coarse, labels[:, None], pixels], axis=1).tobytes()
    x, y = formats.read_cifar_binary(write(tmp_path / "b.bin", content), label_bytes)
    assert np.array_equal(x, pixels.reshape(4, 3, 32, 32))
    assert np.array_equal(y, labels)
    for wrong in (content[:-1], b""):
        with pytest.raises(DataError, match=r"b\.bin"):
            formats.read_cifar_binary(write(tmp_path / "b.bin", wrong), label_bytes)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_cifar_pickle_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    pixels, labels = cifar_arrays(3, 100, seed=2)
    path = write(tmp_path / "train", cifar_pickle(pixels, labels, "fine_labels", protocol))
    x, y = formats.read_cifar_pickle(path, "fine_labels")
    assert np.array_equal(x, pixels.reshape(3, 3, 32, 32))
    assert np.array_equal(y, labels)


def test_cifar_pickle_of_python_2(tmp_path: Path) -> None:
    """The original batches were written by Python 2: byte strings, protocol 2, NumPy's old module names."""
    pixels, _ = cifar_arrays(1, 10, seed=3)

    def text(value: bytes) -> bytes:  # SHORT_BINSTRING or BINSTRING: a str of Python 2
        short = len(value) < 256
        return (b"U" + bytes([len(value)]) if short else b"T" + len(value).to_bytes(4, "little")) + value

    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01K\x01M\x00\x0c\x86" + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"
    )
    content = b"\x80\x02}(" + text(b"data") + array + text(b"labels") + b"]K\x07au."
    x, y = formats.read_cifar_pickle(write(tmp_path / "data_batch_1", content), "labels")
    assert np.array_equal(x.reshape(1, -1), pixels)
    assert y.tolist() == [7]


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return eval, (f"open({str(self.target)!r}, 'w').close()",)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "ran"
    path = write(tmp_path / "data_batch_1", pickle.dumps({"data": Hostile(victim)}))
    with pytest.raises(DataError, match=r"builtins\.eval is not allowed"):
        formats.read_cifar_pickle(path, "labels")
    assert not victim.exists()
    pickle.loads(path.read_bytes())  # the trap is real: an ordinary reader falls into it
    assert victim.exists()


def test_cut_and_wrong_pickles(tmp_path: Path) -> None:
    pixels, labels = cifar_arrays(2, 10, seed=4)
    whole = cifar_pickle(pixels, labels, "labels")
    wrong = [whole[:end] for end in range(0, len(whole) - 1, 211)]
    wrong += [
        pickle.dumps(content) for content in ([1], {"data": 3}, {"data": pixels}, {"data": pixels, "labels": [1]})
    ]
    for content in wrong:
        with pytest.raises(DataError, match="data_batch_1"):
            formats.read_cifar_pickle(write(tmp_path / "data_batch_1", content), "labels")


@given(position=st.integers(0, 400), value=st.integers(0, 255))
def test_a_flipped_byte_in_a_pickle_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    pixels, labels = cifar_arrays(1, 10, seed=5)
    content = bytearray(cifar_pickle(pixels, labels, "labels"))
    content[position if position < 200 else -(position - 199)] = value
    path = write(tmp_path_factory.getbasetemp() / "data_batch_1", bytes(content))
    try:
        x, y = formats.read_cifar_pickle(path, "labels")
    except DataError as error:
        assert "data_batch_1" in str(error)  # noqa: PT017 - either outcome is right, a third kind of error is not
    else:
        assert x.shape == (len(y), 3, 32, 32)


def test_leaf(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 784)).astype(np.uint8)
    whole = leaf_bytes({"f01": (pixels[:3], [1, 2, 3]), "f02": (pixels[3:], [61, 0])})
    table = formats.read_leaf_json(write(tmp_path / "all.json", whole))
    assert list(table) == ["f01", "f02"]
    assert np.array_equal(table["f02"][0].reshape(2, 784), pixels[3:])
    assert table["f01"][1].tolist() == [1, 2, 3]
    wrong = [whole[:-5], b"{}", whole.replace(b"[3, 2]", b"[3, 3]"), whole.replace(b"0.", b"3.", 1), b"[" * 10**5]
    for content in wrong:
        with pytest.raises(DataError, match=r"all\.json"):
            formats.read_leaf_json(write(tmp_path / "all.json", content))


def test_news_in_two_and_three_columns(tmp_path: Path) -> None:
    content = b'"3","One, ""quoted"" text"\n"1","A title","and text"\n\n'
    texts, topics = formats.read_news_csv(write(tmp_path / "train.csv", content), 4)
    assert texts == ['One, "quoted" text', "A title . and text"]
    assert topics.tolist() == [2, 0]


@pytest.mark.parametrize(
    "content", [b"", b'"5","text"\n', b'"x","text"\n', b'"1"\n', b'"1","a","b","c"\n', b'"1","cu', b"\xff"]
)
def test_wrong_news(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"train\.csv"):
        formats.read_news_csv(write(tmp_path / "train.csv", content), 4)
