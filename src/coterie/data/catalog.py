"""Where each data set is published, and the checksum published with it: the one place for addresses.

Checksums are those of the data sets' own pages where they have one (CIFAR, Fashion-MNIST), otherwise those that the
widely used loaders of the set check (torchvision for MNIST, EMNIST and QMNIST, torchtext for AG-News). A download
without a published checksum has None and is then checked for its length and by its reader only. The checksum of
the Shakespeare text is not its author's; it is that of the file at this address as several projects pin it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """One file to fetch."""

    url: str
    checksum: str | None
    """Algorithm and hex digest, for example `md5:f68b…`; None where none is published."""
    folder: str
    """Where the file, or what an archive holds, goes inside the data folder."""
    rename: str | None = None
    """The file's name there, when it is not the last part of the address."""
    members: str | None = None
    """For an archive (.tar.gz, .zip), the pattern of the members to unpack; `*` for all of them."""

    @property
    def filename(self) -> str:
        return self.rename or self.url.rsplit("/", 1)[1]


def _files(base: str, folder: str, sums: dict[str, str]) -> tuple[Download, ...]:
    return tuple(Download(f"{base}/{name}", f"md5:{md5}", folder) for name, md5 in sums.items())


MNIST = _files(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "MNIST/raw",
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
FASHION_MNIST = _files(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "FashionMNIST/raw",
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)
QMNIST_LABELS = _files(
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master",
    "qmnist",
    {
        "qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4",
        "qmnist-test-labels-idx2-int.gz": "5b5b05890a5e13444e108efe57b788aa",
    },
)

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
_RDATASETS = "https://vincentarelbundock.github.io/Rdatasets/csv/mlmRev"
SCHOOLS = {
    name.lower(): (Download(f"{_RDATASETS}/{name}.csv", None, "schools", rename=f"{name.lower()}.csv"),)
    for name in ("Hsb82", "Exam", "Chem97")
}

CATALOG: dict[str, tuple[Download, ...]] = {
    "mnist": MNIST,
    "fashion-mnist": FASHION_MNIST,
    "mnist+fashion": MNIST + FASHION_MNIST,
    "mnist-writers": MNIST + QMNIST_LABELS,
    "emnist": (
        Download(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "md5:58c8d27c78d21e728a6bc7b3cc06412e",
            "EMNIST/raw",
            rename="emnist.zip",
            members="gzip/emnist-balanced-*",  # the other splits would take another half gigabyte
        ),
    ),
    # The binary form of CIFAR: the same images as the Python form, and nothing to unpickle.
    "cifar10": (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            ".",
            members="*",
        ),
    ),
    "cifar100": (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "md5:03b5dce01913d631647c71ecec9e9cb8",
            ".",
            members="*",
        ),
    ),
    "ag-news": _files(
        "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv",
        "ag_news_csv",
        {"train.csv": "b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "d52ea96a97a2d943681189a97654912d"},
    ),
    "shakespeare": (
        Download(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            "shakespeare",
            rename="tinyshakespeare.txt",
        ),
    ),
    # Neither UCI nor Rdatasets publishes checksums; the readers check what the files hold.
    "heart-disease": tuple(
        Download(f"{_UCI}/processed.{name}.data", None, "heart-disease")
        for name in ("cleveland", "hungarian", "switzerland", "va")
    ),
    **SCHOOLS,
    "air": (
        Download(
            "https://archive.ics.uci.edu/ml/machine-learning-databases/00501/PRSA2017_Data_20130301-20170228.zip",
            None,
            "beijing-air",
            members="PRSA_Data_20130301-20170228/PRSA_Data_*.csv",
        ),
    ),
}

BY_HAND: dict[str, str] = {
    "digits": "comes with scikit-learn: there is nothing to fetch",
    "breast-cancer": "comes with scikit-learn: there is nothing to fetch",
    "femnist": "LEAF publishes no ready files: run data/femnist/preprocess.sh of https://github.com/TalwalkarLab/leaf "
    "and put its train and test folders into femnist/ in the data folder",
    "landmine": "Duke University's LandmineData.mat (Xue, Liao, Carin and Krishnapuram, 2007) has no lasting address: "
    "put it, with the cell arrays feature and label of 29 fields, into landmine/ in the data folder",
    "digits-4": "run `coterie data fetch mnist`, and put into digits-4/ in the data folder: optdigits.tra and "
    "optdigits.tes (https://archive.ics.uci.edu/dataset/80), semeion.data (https://archive.ics.uci.edu/dataset/178) "
    "and USPS.mat with 16x16 bytes as rows of fea and the digit plus one as gnd",
    "watch": "seglearn (https://github.com/dmbee/seglearn) publishes it as a pickle, which may run code: load it there "
    "with seglearn.load_watch() and save x (all samples below each other), length, subject, exercise and side as "
    "watch/watch.npz in the data folder",
}
"""Sets that cannot be downloaded, and what to do instead."""

_SCHOOLS = "R package mlmRev, GPL"
TERMS: dict[str, str] = {
    "digits": "UCI 80, CC BY 4.0",
    "breast-cancer": "UCI 17, CC BY 4.0",
    "mnist": "LeCun, Cortes and Burges, CC BY-SA 3.0",
    "fashion-mnist": "Zalando, MIT",
    "mnist+fashion": "as mnist and fashion-mnist",
    "mnist-writers": "as mnist; QMNIST, BSD",
    "emnist": "NIST, no licence stated",
    "femnist": "NIST by way of LEAF, BSD",
    "digits-4": "as mnist; USPS, research use; UCI 80 and 178, CC BY 4.0",
    "cifar10": "University of Toronto, no licence stated",
    "cifar100": "University of Toronto, no licence stated",
    "ag-news": "AG's corpus, non-commercial research",
    "shakespeare": "char-rnn, public domain",
    "heart-disease": "UCI 45, CC BY 4.0",
    "hsb82": _SCHOOLS,
    "exam": _SCHOOLS,
    "chem97": _SCHOOLS,
    "air": "UCI 501, CC BY 4.0",
    "landmine": "Duke University, research use",
    "watch": "seglearn, BSD",
}
"""Where each set is from and on what terms, as far as its publisher says so: check before you publish data."""
