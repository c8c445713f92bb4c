"""Downloads from a real server on loopback: whole, broken off and resumed, wrong, missing, unreachable, hostile."""

from __future__ import annotations

import hashlib
import http.server
import io
import re
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.data.catalog import CATALOG, Download
from coterie.data.fetch import fetch
from coterie.errors import DataError

CONTENT = bytes(range(256)) * 4000


class Mirror(http.server.ThreadingHTTPServer):
    """Serves `files` by path, honouring Range; breaks off after `break_after` bytes of a reply when that is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.break_after: int | None = None
        self.ranges = True
        self.requests: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append(asked)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.server.ranges else 0  # type: ignore[index]
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.server.break_after])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = Mirror()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def one(content: bytes = CONTENT, name: str = "set.bin", members: str | None = None) -> dict[str, tuple[Download, ...]]:
    checksum = "md5:" + hashlib.md5(content).hexdigest()
    return {"set": (Download(f"https://public.example/path/{name}", checksum, "folder", members=members),)}


def test_a_whole_download_with_progress_and_not_twice(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/path/set.bin"] = CONTENT
    seen: list[tuple[str, int, int | None]] = []
    fetch("set", tmp_path, lambda *args: seen.append(args), mirror.url, one())
    assert (tmp_path / "folder/set.bin").read_bytes() == CONTENT
    assert seen[0] == ("set.bin", 0, len(CONTENT))
    assert seen[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    fetch("set", tmp_path, base_url=mirror.url, catalog=one())
    assert len(mirror.requests) == 1
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["set.bin"]


def test_broken_off_then_resumed_from_where_it_was(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/path/set.bin"] = CONTENT
    mirror.break_after = 300_001
    with pytest.raises(DataError, match="resume"):
        fetch("set", tmp_path, base_url=mirror.url, catalog=one())
    assert (tmp_path / "folder/set.bin.part").stat().st_size == 300_001
    assert not (tmp_path / "folder/set.bin").exists()
    mirror.break_after = None
    seen: list[int] = []
    fetch("set", tmp_path, lambda _name, done, _total: seen.append(done), mirror.url, one())
    assert mirror.requests == [None, "bytes=300001-"]
    assert seen[0] == 300_001
    assert (tmp_path / "folder/set.bin").read_bytes() == CONTENT
    assert not (tmp_path / "folder/set.bin.part").exists()


def test_a_server_without_ranges_starts_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/path/set.bin"] = CONTENT
    mirror.ranges = False
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/set.bin.part").write_bytes(b"some beginning")
    fetch("set", tmp_path, base_url=mirror.url, catalog=one())
    assert (tmp_path / "folder/set.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("beginning", [CONTENT, CONTENT + b"too long"])
def test_a_part_that_is_whole_or_too_long(mirror: Mirror, tmp_path: Path, beginning: bytes) -> None:
    mirror.files["/path/set.bin"] = CONTENT
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/set.bin.part").write_bytes(beginning)
    fetch("set", tmp_path, base_url=mirror.url, catalog=one())
    assert (tmp_path / "folder/set.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_discards_the_download(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/path/set.bin"] = CONTENT[:-1] + b"?"
    with pytest.raises(DataError, match=r"/path/set\.bin: the checksum is md5:.*published is md5:"):
        fetch("set", tmp_path, base_url=mirror.url, catalog=one())
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_damaged_file_is_fetched_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/path/set.bin"] = CONTENT
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/set.bin").write_bytes(CONTENT[:100])
    fetch("set", tmp_path, base_url=mirror.url, catalog=one())
    assert (tmp_path / "folder/set.bin").read_bytes() == CONTENT


def test_not_found(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="404"):
        fetch("set", tmp_path, base_url=mirror.url, catalog=one())


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(DataError, match="check the network") as caught:
        fetch("set", tmp_path, base_url=url, catalog=one())
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("in the way")
    with pytest.raises(DataError, match="cannot write"):
        fetch("set", tmp_path, base_url=mirror.url, catalog=one())


def tar_of(files: dict[str, bytes], link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo("batches/link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info)
    return buffer.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
    return buffer.getvalue()


def test_a_tar_is_unpacked_once_and_its_links_are_not(mirror: Mirror, tmp_path: Path) -> None:
    archive = tar_of({"batches/a.bin": b"a", "batches/deep/b.bin": b"b"}, link="/etc/passwd")
    mirror.files["/path/set.tar.gz"] = archive
    catalog = one(archive, "set.tar.gz", "*")
    for _ in range(2):
        fetch("set", tmp_path, base_url=mirror.url, catalog=catalog)
    assert len(mirror.requests) == 1
    assert (tmp_path / "folder/batches/deep/b.bin").read_bytes() == b"b"
    names = sorted(path.name for path in (tmp_path / "folder").rglob("*") if not path.is_dir())
    assert names == [".set.tar.gz.unpacked", "a.bin", "b.bin"]
    (tmp_path / "folder/batches/a.bin").unlink()
    fetch("set", tmp_path, base_url=mirror.url, catalog=catalog)
    assert (tmp_path / "folder/batches/a.bin").read_bytes() == b"a"


def test_only_the_wanted_members_of_a_zip(mirror: Mirror, tmp_path: Path) -> None:
    archive = zip_of({"gzip/balanced-a.gz": b"a", "gzip/digits-a.gz": b"no"})
    mirror.files["/path/set.zip"] = archive
    fetch("set", tmp_path, base_url=mirror.url, catalog=one(archive, "set.zip", "gzip/balanced-*"))
    assert [path.name for path in (tmp_path / "folder/gzip").iterdir()] == ["balanced-a.gz"]


@pytest.mark.parametrize(
    "name", ["../outside", "a/../../outside", "/tmp/outside-coterie", "..\\outside", "C:\\outside"]
)
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_members_stay_inside_the_folder(mirror: Mirror, tmp_path: Path, name: str, kind: str) -> None:
    archive = (zip_of if kind == "zip" else tar_of)({name: b"bad"})
    mirror.files[f"/path/set.{kind}"] = archive
    with pytest.raises(DataError, match="would leave the data folder"):
        fetch("set", tmp_path / "data", base_url=mirror.url, catalog=one(archive, f"set.{kind}", "*"))
    assert not list(tmp_path.rglob("*outside*"))


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_what_is_no_archive_is_removed(mirror: Mirror, tmp_path: Path, kind: str) -> None:
    content = tar_of({"a": bytes(5000)})[:-20] if kind == "tar.gz" else b"PK not really"
    mirror.files[f"/path/set.{kind}"] = content
    with pytest.raises(DataError, match="not a whole archive"):
        fetch("set", tmp_path, base_url=mirror.url, catalog=one(content, f"set.{kind}", "*"))
    assert not (tmp_path / f"folder/set.{kind}").exists()


def test_unknown_names_and_sets_that_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        fetch("mnits", tmp_path)
    with pytest.raises(DataError, match="preprocess"):
        fetch("femnist", tmp_path)
    with pytest.raises(DataError, match="scikit-learn"):
        fetch("digits", tmp_path)


def test_the_catalog_is_well_formed() -> None:
    lengths = {"md5": 32, "sha256": 64}
    for item in (item for downloads in CATALOG.values() for item in downloads):
        assert item.url.startswith(("https://", "http://fashion-mnist."))
        if item.checksum is None:
            assert "archive.ics.uci.edu" in item.url or "Rdatasets" in item.url  # they publish none
            continue
        algorithm, digest = item.checksum.split(":")
        assert re.fullmatch(f"[0-9a-f]{{{lengths[algorithm]}}}", digest)
        assert (item.members is not None) == item.url.endswith((".zip", ".tar.gz"))


@pytest.mark.parametrize("archive", [False, True])
def test_more_than_any_data_set_holds_is_not_kept(
    mirror: Mirror, tmp_path: Path, archive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.data.fetch.MOST_BYTES", len(CONTENT) - 1)
    content, name = CONTENT, "set.bin"
    if archive:  # small on its way, large once unpacked
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("large", CONTENT)
        content, name = packed.getvalue(), "set.zip"
    mirror.files[f"/path/{name}"] = content
    with pytest.raises(DataError, match=r"more than .* GB, no data set here is that large"):
        fetch("set", tmp_path, base_url=mirror.url, catalog=one(content, name, "*" if archive else None))
    assert not (tmp_path / "folder/large").exists()
    assert not (tmp_path / "folder/set.bin.part").exists()
