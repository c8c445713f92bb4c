"""Downloads a data set from its public address: resumes, checks the published checksum, unpacks."""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import os
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from coterie.data.catalog import BY_HAND, CATALOG, Download
from coterie.errors import DataError, did_you_mean

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes it has so far, and the bytes it will have where the server says so."""

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30
MOST_BYTES = 8 * 10**9
"""Bytes of a download, and of all that an archive unpacks to: far above any data set of the catalog."""


def fetch(
    name: str,
    data_dir: Path,
    progress: Progress = lambda name, done, total: None,
    base_url: str | None = None,
    catalog: Mapping[str, Sequence[Download]] = CATALOG,
) -> None:
    """Downloads the data set `name` into `data_dir`; files that are there and right are not fetched again.

    `base_url` replaces the scheme and host of every address, for a mirror that keeps the same paths.
    """
    if name in BY_HAND and name not in catalog:
        raise DataError(f"{name!r} cannot be fetched, {BY_HAND[name]}")
    if name not in catalog:
        raise DataError(f"no data set {name!r}: {did_you_mean(name, [*catalog, *BY_HAND])}")
    for item in catalog[name]:
        url = item.url if base_url is None else base_url.rstrip("/") + urlsplit(item.url).path
        try:
            _fetch_one(item, url, data_dir / item.folder, progress)
        except OSError as error:  # what is left after the network's own errors: a full disk, a folder not writable
            raise DataError(
                f"{name}: cannot write to {data_dir / item.folder} ({error}): check space and rights"
            ) from error


def _download_checked(item: Download, url: str, target: Path, progress: Progress) -> None:
    """Download beside the target, and put it there if it is what was published."""
    part = target.with_name(item.filename + ".part")
    _download(url, part, progress, item.filename)
    if item.checksum and (found := _digest(part, item.checksum)) != item.checksum:
        part.unlink()
        raise DataError(
            f"{url}: the checksum is {found}, published is {item.checksum}: the download is discarded, fetch again "
            "(if it stays so, the file at that address has changed)"
        )
    os.replace(part, target)


def _fetch_one(item: Download, url: str, folder: Path, progress: Progress) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / item.filename
    unpacked = folder / f".{item.filename}.unpacked"  # an archive is deleted once unpacked; this remembers that it was
    if item.members is not None and unpacked.exists():
        names = unpacked.read_text(encoding="utf-8").splitlines()
        if all((folder / name).exists() for name in names):
            return
    if not (target.exists() and item.checksum and _digest(target, item.checksum) == item.checksum):
        _download_checked(item, url, target, progress)
    if item.members is not None:
        names = _unpack(target, folder, item.members)
        unpacked.write_text("\n".join(names), encoding="utf-8")
        target.unlink()


def _digest(path: Path, checksum: str) -> str:
    """The file's checksum, in the algorithm and the form of `checksum`."""
    algorithm = checksum.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _download(url: str, part: Path, progress: Progress, label: str) -> None:
    """Brings `part` to the full content of `url`, going on from the bytes it already has."""
    have = part.stat().st_size if part.exists() else 0
    try:
        done, total = _received(url, part, have, progress, label)
    except DataError:  # too large: nothing of it is of use
        part.unlink(missing_ok=True)
        raise
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise DataError(
                f"{url}: the server answers {error.code} {error.reason}: try later, or get the file by hand"
            ) from error
        # Nothing lies beyond what we have: the part is whole (the checksum decides), or of another file.
        if error.headers.get("Content-Range", "") == f"bytes */{have}":
            return
        part.unlink()
        _download(url, part, progress, label)
        return
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise DataError(
            f"{url}: cannot be reached or broke off ({reason}): check the network and run again to resume"
        ) from error
    if total is not None and done < total:
        raise DataError(f"{url}: broke off after {done} of {total} bytes: run the same command again to resume")


def _received(url: str, part: Path, have: int, progress: Progress, label: str) -> tuple[int, int | None]:
    """Write what the server sends from byte `have` on; the bytes there are then, and how many it announced."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length and length.isdigit() else None
        _check_size(url, total or done)
        with part.open("ab" if resumed else "wb") as file:
            progress(label, done, total)
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                _check_size(url, done)
                progress(label, done, total)
    return done, total


def _check_size(url: str, size: int) -> None:
    """Refuse a file that is larger than any data set of the catalog: an endless answer would fill the disk."""
    if size > MOST_BYTES:
        raise DataError(f"{url}: more than {MOST_BYTES / 1e9:g} GB, no data set here is that large: get it by hand")


def _unpack(archive: Path, folder: Path, pattern: str) -> list[str]:
    """Writes the archive's files that match `pattern` under `folder`, each in one step; returns their names."""
    names = []
    unpacked = 0
    try:
        for name, content in _members(archive):
            if not fnmatch.fnmatchcase(name, pattern):
                continue
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                raise DataError(f"{archive}: holds {name!r}, which would leave the data folder: do not use this file")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(target.name + ".part")
            with fresh.open("wb") as file:
                while chunk := content.read(CHUNK):
                    unpacked += len(chunk)
                    _check_size(str(archive), unpacked)
                    file.write(chunk)
            os.replace(fresh, target)
            names.append(str(path))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        archive.unlink()
        raise DataError(f"{archive}: not a whole archive ({error}): it was removed, fetch again") from error
    if not names:
        raise DataError(f"{archive}: holds nothing named {pattern}: it is another archive, remove it and fetch again")
    return names


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the regular files of a .zip or .tar.gz; links and devices are passed over."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    with zipped.open(info) as content:
                        yield info.filename, content
        return
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is not None:
                yield member.name, stream
