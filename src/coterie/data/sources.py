"""The data sets by name: which files each needs, how they become a pool, and which of them are there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from coterie.data import images
from coterie.data.catalog import BY_HAND, CATALOG, TERMS
from coterie.data.formats import Files
from coterie.data.news_and_plays import load_ag_news, load_shakespeare
from coterie.data.pools import Pool, TextPool
from coterie.data.signals import Recordings, load_watch
from coterie.data.sites import HOSPITALS, load_air, load_heart, load_landmine, load_schools
from coterie.errors import DataError, did_you_mean
from coterie.federation.table_files import RawTable
from coterie.plugins import load_as, offered

Layout = tuple[str, ...]

VOCABULARY_SIZE = 10_000
GROUP = "coterie.sources"
"""The group of entry points in which packages offer data sets."""


@dataclass(frozen=True)
class AnySource:
    """A named data set, and where its files may lie."""

    name: str
    summary: str
    classes: int
    """0 where what is predicted is a quantity, or where the classes depend on the text."""
    layouts: tuple[Layout, ...]
    """Ways the set may lie in the data folder, each a list of file patterns; any of them may also end in .gz."""


@dataclass(frozen=True)
class Source(AnySource):
    """A named data set of images, or of anything else whose samples are arrays of one shape."""

    load: Callable[[Files], Pool]
    """Makes the pool of the files that match each pattern of one layout."""


@dataclass(frozen=True)
class TextSource(AnySource):
    """A named data set of text; `classes` counts its topics."""

    load: Callable[[Files, int], TextPool]


@dataclass(frozen=True)
class TableSource(AnySource):
    """A named data set of tables, one per site."""

    load: Callable[[Files], dict[str, RawTable]]


@dataclass(frozen=True)
class SignalSource(AnySource):
    """A named data set of signals, recorded from people."""

    load: Callable[[Files], Recordings]


class Availability(NamedTuple):
    """Whether a set is in the data folder, and where it is or what is missing."""

    name: str
    present: bool
    detail: str
    terms: str = ""
    """Its source and licence."""


def _idx(folders: Sequence[str], prefixes: tuple[str, str] = ("train", "t10k")) -> tuple[Layout, ...]:
    endings = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(tuple(f"{folder}/{p}-{end}" for p in prefixes for end in endings) for folder in folders)


def _both(first: tuple[Layout, ...], second: tuple[Layout, ...]) -> tuple[Layout, ...]:
    return tuple(a + b for a, b in product(first, second))


_MNIST = _idx(("MNIST/raw", "mnist"))
_FASHION = _idx(("FashionMNIST/raw", "fashion-mnist"))
_EMNIST = _idx(
    ("EMNIST/raw/gzip", "EMNIST/raw", "emnist", "gzip"), prefixes=("emnist-balanced-train", "emnist-balanced-test")
)
_QMNIST = tuple(
    tuple(f"{folder}/qmnist-{part}-labels-idx2-int" for part in ("train", "test"))
    for folder in ("qmnist", "QMNIST/raw")
)
_CIFAR10 = tuple(
    tuple(f"{folder}/{name}{end}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))
    for folder, end in (("cifar-10-batches-bin", ".bin"), ("cifar-10-batches-py", ""))
)
_CIFAR100 = (
    ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin"),
    ("cifar-100-python/train", "cifar-100-python/test"),
)
_FEMNIST = tuple((f"{folder}/train/*.json", f"{folder}/test/*.json") for folder in ("femnist", "femnist/data"))

_OTHERS = ("digits-4/USPS.mat", "digits-4/semeion.data", "digits-4/optdigits.tes", "digits-4/optdigits.tra")
_FOUR = ((*_OTHERS, "digits-4/optdigits.hol"), _OTHERS)


def _schools(name: str) -> tuple[Layout, ...]:
    return ((f"schools/{name.lower()}.csv",), (f"schools/{name}.csv",))


_OURS: tuple[AnySource, ...] = (
    Source("digits", "1,797 handwritten digits, 8x8, part of scikit-learn", 10, ((),), images.load_digits_pool),
    Source(
        "breast-cancer", "569 patients, 30 numbers of each, part of scikit-learn", 2, ((),), images.load_breast_cancer
    ),
    Source("mnist", "70,000 handwritten digits, 28x28", 10, _MNIST, images.load_mnist),
    Source("fashion-mnist", "70,000 pieces of clothing, 28x28", 10, _FASHION, images.load_fashion),
    Source("mnist+fashion", "digits and clothing as one set", 20, _both(_MNIST, _FASHION), images.load_both),
    Source("mnist-writers", "MNIST by its writers (QMNIST)", 10, _both(_MNIST, _QMNIST), images.load_writers),
    Source("emnist", "131,600 digits and letters, 28x28, the balanced split", 47, _EMNIST, images.load_emnist),
    Source("femnist", "digits and letters by writer, 28x28, LEAF's files", 62, _FEMNIST, images.load_femnist),
    Source("digits-4", "digits of four origins, 28x28", 10, _both(_MNIST, _FOUR), images.load_four_sites),
    Source("cifar10", "60,000 colour photographs, 32x32", 10, _CIFAR10, images.load_cifar10),
    Source("cifar100", "60,000 colour photographs, 32x32", 100, _CIFAR100, images.load_cifar100),
    TextSource(
        "ag-news",
        "news in four topics, by word",
        4,
        (("ag_news_csv/train.csv", "ag_news_csv/test.csv"),),
        load_ag_news,
    ),
    TextSource(
        "shakespeare",
        "plays by speaker, by character",
        0,
        (("shakespeare/tinyshakespeare.txt",), ("shakespeare/input.txt",)),
        load_shakespeare,
    ),
    TableSource(
        "heart-disease",
        "920 patients of four hospitals, 13 features, many missing",
        2,
        (tuple(f"heart-disease/processed.{name}.data" for name in HOSPITALS),),
        load_heart,
    ),
    TableSource(
        "hsb82", "7,185 pupils of 160 schools in the USA, mathematics", 0, _schools("Hsb82"), load_schools("mAch")
    ),
    TableSource("exam", "4,059 pupils of 65 schools in London", 0, _schools("Exam"), load_schools("normexam")),
    TableSource(
        "chem97",
        "31,022 pupils of 2,410 schools in Britain, chemistry",
        0,
        _schools("Chem97"),
        load_schools("score"),
    ),
    TableSource(
        "air",
        "420,768 hours of air and weather at 12 stations in Beijing",
        0,
        tuple((f"beijing-air/{folder}PRSA_Data_*.csv",) for folder in ("", "PRSA_Data_20130301-20170228/")),
        load_air,
    ),
    TableSource(
        "landmine",
        "14,820 places in 29 minefields, radar features",
        2,
        (("landmine/LandmineData.mat",),),
        load_landmine,
    ),
    SignalSource(
        "watch",
        "140 recordings of ten people at seven exercises, six axes of a watch",
        7,
        (("watch/watch.npz",),),
        load_watch,
    ),
)
SOURCES = {source.name: source for source in _OURS}
"""All sets by name, in the order in which they are listed."""


def data_folder(data_dir: Path | str | None = None) -> Path:
    """The folder that holds the data sets: the argument, else COTERIE_DATA, else ~/.cache/coterie."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    named = os.environ.get("COTERIE_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "coterie"


def find_source(name: str) -> AnySource:
    """The data set of that name, or a DataError with a suggestion; packages that offer others stay unloaded."""
    if name in SOURCES:
        return SOURCES[name]
    points = offered(GROUP)
    if name not in points:
        raise DataError(f"unknown data set {name!r}: {did_you_mean(name, [*SOURCES, *points])}")
    return load_as(points[name], "data set", Source, TextSource)


_BY_SCENARIO = "tables or signals: use a scenario"


def load_source(name: str, data_dir: Path | str | None = None) -> Pool:
    """The image set of that name, read from the data folder."""
    source = find_source(name)
    if not isinstance(source, Source):
        other = "text, not images: use load_text_source" if isinstance(source, TextSource) else _BY_SCENARIO
        raise DataError(f"{name!r} is {other}")
    return source.load(_find(source, data_folder(data_dir)))


def load_text_source(name: str, data_dir: Path | str | None = None, vocabulary_size: int = VOCABULARY_SIZE) -> TextPool:
    """The text set of that name, read from the data folder, with at most `vocabulary_size` words (or characters)."""
    source = find_source(name)
    if not isinstance(source, TextSource):
        other = "images, not text: use load_source" if isinstance(source, Source) else _BY_SCENARIO
        raise DataError(f"{name!r} is {other}")
    return source.load(_find(source, data_folder(data_dir)), vocabulary_size)


def load_table_source(name: str, data_dir: Path | str | None = None) -> dict[str, RawTable]:
    """The table of every site of that data set, read from the data folder."""
    source = find_source(name)
    if not isinstance(source, TableSource):
        raise DataError(f"{name!r} is images or text, not tables: use load_source or load_text_source")
    return source.load(_find(source, data_folder(data_dir)))


def load_signal_source(name: str, data_dir: Path | str | None = None) -> Recordings:
    """The recordings of that data set, read from the data folder."""
    source = find_source(name)
    if not isinstance(source, SignalSource):
        raise DataError(f"{name!r} holds no signals: use a scenario")
    return source.load(_find(source, data_folder(data_dir)))


def source_names() -> list[str]:
    """The names of all data sets: ours, and those that installed packages offer as `coterie.sources` entry points."""
    return list(dict.fromkeys([*SOURCES, *offered(GROUP)]))


def available(data_dir: Path | str | None = None) -> list[Availability]:
    """Every set by name, whether it is in the data folder, and where it is or what is missing."""
    root = data_folder(data_dir)
    listing = []
    for source in map(find_source, source_names()):
        files, missing = _best_layout(source, root)
        if missing:
            detail = f"missing {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        else:
            detail = ", ".join(dict.fromkeys(str(found[0].parent) for found in files)) or "needs no files"
        listing.append(Availability(source.name, not missing, detail, TERMS.get(source.name, "")))
    return listing


def _matches(root: Path, pattern: str) -> list[Path]:
    """The files of a pattern, plain ones first: a user who unpacked a .gz and kept both has one file, not two."""
    return sorted(root.glob(pattern)) or sorted(root.glob(pattern + ".gz"))


def _best_layout(source: AnySource, root: Path) -> tuple[Files, list[str]]:
    """The files of the layout that lacks least, and the patterns it lacks."""
    found = [[(pattern, _matches(root, pattern)) for pattern in layout] for layout in source.layouts]
    best = min(found, key=lambda layout: sum(not files for _, files in layout))
    return [files for _, files in best], [pattern for pattern, files in best if not files]


def _find(source: AnySource, root: Path) -> Files:
    files, missing = _best_layout(source, root)
    if missing:
        ours = f"run `coterie data fetch {source.name}`" if source.name in CATALOG else "put it there"
        remedy = BY_HAND.get(source.name, f"{ours}, or name another folder by --data-dir")
        raise DataError(f"data set {source.name!r} is not in {root}, {missing[0]} is missing: {remedy}")
    return files
