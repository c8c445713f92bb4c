"""A JSON file of very many records, one on a line, that is written and read without ever holding all of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from coterie.errors import RunError
from coterie.runs.records import parse_json, to_json
from coterie.snapshot import write_atomically

CHECKSUM = "checksum"
ROWS = "rows"
"""Name under which a file keeps a list."""
DIGEST = 16
"""Bytes of a checksum."""
HEAD = re.compile(rf'{{\n  "{CHECKSUM}": "([0-9a-f]{{{2 * DIGEST}}})",\n  "{ROWS}": \[\n(?=    {{"|  \])'.encode())
"""How such a file begins."""
END = b"  ]\n"
LONGEST_HEAD = 256
"""Bytes within which that is seen."""


class Row(NamedTuple):
    """A row of a file and the place of its line, in bytes."""

    place: int
    value: Any


_readable = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Made once: `json.dumps` with arguments makes an encoder for each row."""


def write_rows(path: Path, records: Iterable[Any]) -> None:
    """Write a JSON file of records, one on a line, with a checksum."""

    def write(file: BinaryIO) -> None:
        hashed = _begun()
        file.write(f'{{\n  "{CHECKSUM}": "'.encode())
        place = file.tell()
        file.write(f'{"0" * 2 * DIGEST}",\n  "{ROWS}": ['.encode())
        for number, record in enumerate(records):
            row = to_json(record)
            hashed.update((("," if number else "") + canonical(row)).encode())
            file.write(((",\n    " if number else "\n    ") + _readable(row)).encode())
        hashed.update(b"]}")
        file.write(b"\n  ]\n}\n")
        file.seek(place)
        file.write(hashed.hexdigest().encode())

    write_atomically(path, write)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file that `write_rows` wrote, one by one.

    A row that cannot be read, or in the end a checksum that does not fit, is a RunError that names the file.
    """
    if not path.is_file():  # a pipe would be read for ever
        raise RunError(f"{path}: cannot be read (missing, or not a regular file): restore it from a copy")
    try:
        with open(path, "rb") as file:
            head = HEAD.match(file.read(LONGEST_HEAD))
            if head is None:
                raise ValueError("not one row on a line")
            file.seek(head.end())
            hashed, place = _begun(), head.end()
            for number, line in enumerate(file):
                if line == END:
                    break
                value = parse_json(line.strip().removesuffix(b","))
                hashed.update((("," if number else "") + canonical(value)).encode())
                yield Row(place, value)
                place += len(line)
    except (OSError, ValueError) as problem:
        raise RunError(f"{path}: cannot be read ({problem})") from problem
    hashed.update(b"]}")
    if hashed.hexdigest().encode() != head[1]:
        raise RunError(f"{path}: damaged, its content does not fit its checksum: restore it from a copy")


def read_row(file: BinaryIO, place: int) -> Any:
    """The row whose line is at a place of an open file."""
    file.seek(place)
    return parse_json(file.readline().strip().removesuffix(b","))


def canonical(content: Any) -> str:
    """JSON text that is the same whatever the spaces and the order of keys were."""
    return _canonical(content)


def _begun() -> hashlib.blake2b:
    return hashlib.blake2b(f'{{"{ROWS}":['.encode(), digest_size=DIGEST)
