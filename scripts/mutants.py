"""Which changes of the code do its tests not notice? `make mutants`, or `python scripts/mutants.py --help`.

A mutant is a module with one small change: a comparison, an operator, a number, a condition or a call. The mutants are
a sample by the seed of all that the modules in TARGETS have. First the tests in TESTS are run once, to see which of
them run which line and how long each takes. Then each mutant is put into a copy of the sources, and the tests that run
its line are run on that copy until one fails, those named for the module first, then the shortest, as many as take
SECONDS_PER_MUTANT. The results are a JSON file; a run that finds it continues it, and tries again what has changed:
the mutant, the test that noticed it or, of a survivor, any of its tests.

Some mutants compute the same as the code and cannot be found: read the survivors one by one.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from importlib.util import cache_from_source
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TARGETS = ("methods/*", "privacy/*", "clustering/*", "runs/loop.py", "runs/recording.py", "runs/concluding.py")
DATA = ("methods/papers.py",)
"""Modules of the targets that compute nothing."""
TESTS = (
    *("clustering", "privacy", "methods", "reference", "runs", "tasks", "test_own_method.py"),
    *("flower/test_secure_sums.py", "flower/test_shown_centroids.py"),
)
"""Below tests/; of those of Flower the ones that are about the targets."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
}  # fmt: skip
NAMES = {"min": "max", "any": "all", "argmin": "argmax", "clamp_min": "clamp_max", "amin": "amax", "sum": "max"}
NAMES |= {other: name for name, other in NAMES.items() if name != "sum"}
UNCHANGED = (ast.Raise, ast.Assert, ast.JoinedStr)
"""What is not changed: errors and their texts; nor is `strict=` of zip."""
SECONDS_PER_MUTANT = 30.0
"""Of tests, as measured without a mutant."""
SLOWER = 20
"""A mutant may never end: one whose tests take so much longer has been noticed."""
NO_TESTS = 5
"""An exit code of pytest."""
PRELOADED = ("torch", "scipy.stats", "sklearn", "hypothesis", "pytest")
"""What every mutant's process would import; each is a fork of this one."""


@dataclass(frozen=True)
class Change:
    """An attribute of a node of the syntax tree, and what it becomes."""

    line: int
    node: Any
    field: str
    value: Any
    statement: ast.AST

    def texts(self) -> tuple[str, str]:
        """The changed line of the statement, before and after."""
        before = ast.unparse(self.statement).splitlines()
        was = getattr(self.node, self.field)
        setattr(self.node, self.field, self.value)
        after = ast.unparse(self.statement).splitlines()
        setattr(self.node, self.field, was)
        return next((one, other) for one, other in zip(before, after, strict=False) if one != other)


@dataclass(frozen=True)
class Mutant:
    """A module, relative to src/coterie, and the number of the change in it."""

    module: str
    number: int
    line: int
    statement: int
    """The line in which its statement begins."""
    before: str
    after: str


def changes(tree: ast.AST) -> list[Change]:
    """All changes of a module, in the order of its lines."""
    return [change for node, statement in _changeable(tree, tree) for change in _changes_of(node, statement)]


def _changeable(node: ast.AST, statement: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The nodes below this one, each with its statement, without types, decorators and errors."""
    left_out = {"annotation", "returns", "decorator_list"}
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            unchanged = isinstance(child, UNCHANGED) or (isinstance(child, ast.keyword) and child.arg == "strict")
            if isinstance(child, ast.AST) and field not in left_out and not unchanged:
                own = child if isinstance(child, ast.stmt) else statement
                yield child, own
                yield from _changeable(child, own)


def _changes_of(node: ast.AST, statement: ast.AST) -> Iterator[Change]:
    """The changes of this node itself."""

    def change(field: str, value: Any, of: ast.AST = node) -> Change:
        return Change(getattr(node, "lineno", 0), of, field, value, statement)

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield change("ops", [SWAPS[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign | ast.UnaryOp) and type(node.op) in SWAPS:
        yield change("op", SWAPS[type(node.op)]())
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield change("value", _another(node.value))
    elif isinstance(node, ast.If | ast.IfExp) and ast.unparse(node.test) != "TYPE_CHECKING":
        yield change("test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield change("value", ast.Constant(None))
    elif isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Name) and called.id in NAMES:
            yield change("id", NAMES[called.id], called)
        elif isinstance(called, ast.Attribute) and called.attr in NAMES:
            yield change("attr", NAMES[called.attr], called)


def _another(value: complex) -> complex:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) or not value else 2 * value


def modules() -> list[str]:
    """The modules of TARGETS, relative to src/coterie."""
    found = (path.relative_to(SOURCE / "coterie").as_posix() for path in sorted((SOURCE / "coterie").rglob("*.py")))
    return [name for name in found if any(fnmatch(name, target) for target in TARGETS) and name not in DATA]


def mutants(names: Sequence[str]) -> list[Mutant]:
    """All mutants of the modules."""
    found = []
    for name in names:
        for number, change in enumerate(changes(ast.parse((SOURCE / "coterie" / name).read_text(encoding="utf-8")))):
            found.append(
                Mutant(name, number, change.line, change.statement.lineno, *(text.strip() for text in change.texts()))
            )
    return found


def mutated(text: str, number: int) -> str:
    """A module's text with one change; comments are gone."""
    tree = ast.parse(text)
    change = changes(tree)[number]
    setattr(change.node, change.field, change.value)
    return ast.unparse(tree)


class Map:
    """Which tests run which lines, and how long each takes: measured once and kept in a folder.

    A file of tests that is new or was changed is measured when it is first needed.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / "measured.json"
        measured: dict[str, str] = json.loads(known.read_text()) if known.exists() else {}
        for tests in TESTS:
            now = {str(file.relative_to(ROOT)): _hash(file.read_bytes()) for file in _files(ROOT / "tests" / tests)}
            changed = [file for file, text in now.items() if measured.get(file) != text]
            if changed:
                _measure(changed, folder / str(len(list(folder.glob("*.xml")))))
                measured |= now
                known.write_text(json.dumps(measured, indent=1) + "\n")
        self.data = CoverageData(no_disk=True)
        self.seconds: dict[str, float] = {}
        for part in range(len(list(folder.glob("*.xml")))):
            self._read(folder / str(part))

    def _read(self, part: Path) -> None:
        lines = CoverageData(str(part.with_suffix(".coverage")))
        lines.read()
        self.data.update(lines)
        for case in ElementTree.parse(part.with_suffix(".xml")).iter("testcase"):
            name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            self.seconds[name] = float(case.get("time", 0))

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests for a mutant, in the order in which they are run."""
        by_line = self.data.contexts_by_lineno(str(SOURCE / "coterie" / mutant.module))
        reaching = self._known(by_line.get(mutant.line, [])) or self._known(by_line.get(mutant.statement, []))
        if not reaching:  # it is run when the module is imported
            reaching = self._known(itertools.chain(*by_line.values()))
        path = Path(mutant.module)
        own = f"tests/{path.parts[0]}/test_{path.stem}.py"
        ordered = sorted(reaching, key=lambda test: (not test.startswith(own), self.seconds[test], test))
        totals = itertools.accumulate(self.seconds[test] for test in ordered)
        return [test for test, total in zip(ordered, totals, strict=True) if total <= SECONDS_PER_MUTANT] or ordered[:1]

    def _known(self, contexts: Iterable[str]) -> set[str]:
        """The tests of coverage contexts; all of a file where a fixture, which they may share, runs the line."""
        found = set()
        for context in set(contexts):
            test, _, phase = context.rpartition("|")
            file = test.partition("::")[0]
            found |= {test} if phase == "run" else {other for other in self.seconds if other.startswith(f"{file}::")}
        return found & self.seconds.keys()


def _files(place: Path) -> list[Path]:
    """The files of tests in a folder, or this one."""
    return sorted(place.glob("test_*.py")) if place.is_dir() else [place] * place.exists()


def _measure(tests: Sequence[str], part: Path) -> None:
    """Run tests once without a mutant."""
    coverage, times, settings = (part.with_suffix(f".{ending}") for ending in ("coverage", "xml", "ini"))
    settings.write_text("[run]\nsource_pkgs = coterie\n")
    words = ["-q", "-x", "-m", "not long", "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"--junitxml={times}", *tests],
        cwd=ROOT,
        env=os.environ | {"COVERAGE_FILE": str(coverage), "PYTHONPATH": _path(SOURCE), "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        times.unlink(missing_ok=True)
        raise SystemExit("the tests fail without any mutant")


def _path(source: Path) -> str:
    return os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])


def digest(mutant: Mutant, tests: Sequence[str]) -> str:
    """Of the mutant and of the files of its tests: what a result holds for."""
    text = (SOURCE / "coterie" / mutant.module).read_text(encoding="utf-8")
    files = sorted({test.partition("::")[0] for test in tests})
    return _hash(mutated(text, mutant.number).encode(), *((ROOT / file).read_bytes() for file in files))


def _hash(*texts: bytes) -> str:
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]


def holds(row: Mapping[str, Any], mutant: Mutant, tests: Sequence[str]) -> bool:
    """Whether a former result is still true: that of a test which failed, while that is as it was."""
    return bool(row["digest"] == digest(mutant, [row["by"]] if row["by"] in tests else tests))


class Chosen:
    """A plugin of pytest that keeps some tests only; one that another test has made possible may be missing.

    It writes which one fails to a file.
    """

    def __init__(self, tests: Sequence[str], failed: Path) -> None:
        self.tests = set(tests)
        self.failed = failed
        self.files = list(dict.fromkeys(test.partition("::")[0] for test in tests))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        kept = [item for item in items if item.nodeid in self.tests]
        items[:] = sorted(kept, key=lambda item: self.files.index(item.nodeid.partition("::")[0]))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.write_text(report.nodeid, encoding="utf-8")


class Copy:
    """A copy of the sources, to which the mutants go one after the other."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        self.failed = folder / "failed"
        shutil.copytree(SOURCE, self.source, ignore=shutil.ignore_patterns("__pycache__"))
        for name in PRELOADED:
            importlib.import_module(name)

    def survives(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> bool:
        """Whether the tests pass with the mutant; one that no test reaches survives."""
        file = self.source / "coterie" / mutant.module
        text = file.read_text(encoding="utf-8")
        self._write(file, mutated(text, mutant.number))
        self.failed.write_text("")
        try:
            return not tests or self._pass(tests, seconds)
        finally:
            self._write(file, text)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text, encoding="utf-8")
        Path(cache_from_source(str(file))).unlink(missing_ok=True)  # of the same size and second, it would count

    def _pass(self, tests: Sequence[str], seconds: float) -> bool:
        child = get_context("fork").Process(target=self._test, args=(tests,))
        child.start()
        child.join(seconds)
        if child.is_alive():
            child.kill()
            child.join()
        if child.exitcode == NO_TESTS:
            raise SystemExit(f"not found: {' '.join(tests)}: delete the map, which is of other tests")
        return child.exitcode == 0

    def _test(self, tests: Sequence[str]) -> None:
        os.chdir(ROOT)
        os.environ |= {"PYTHONPATH": _path(self.source), "OMP_NUM_THREADS": "1"}
        sys.path.insert(0, str(self.source))
        for name in [name for name in sys.modules if name.partition(".")[0] == "coterie"]:
            del sys.modules[name]  # not the copy
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        chosen = Chosen(tests, self.failed)
        os._exit(importlib.import_module("pytest").main(["-q", "-x", *chosen.files], plugins=[chosen]))


def run(chosen: Sequence[Mutant], out: Path, map_folder: Path) -> list[dict[str, Any]]:
    """The results of the mutants, those of the file where they still hold; it is written after each."""
    former = json.loads(out.read_text())["mutants"] if out.exists() else []
    known = {(row["module"], row["number"]): row for row in former}
    rows: list[dict[str, Any]] = []
    reach = Map(map_folder)
    with tempfile.TemporaryDirectory() as folder:
        place = Copy(Path(folder))
        for i, mutant in enumerate(chosen):
            tests = reach.tests(mutant)
            row = known.pop((mutant.module, mutant.number), None)
            if row is None or not holds(row, mutant, tests):
                limit = 60 + SLOWER * sum(reach.seconds[test] for test in tests)
                survived = place.survives(mutant, tests, limit)
                by = place.failed.read_text(encoding="utf-8")
                row = {"survived": survived, "by": by, "digest": digest(mutant, [by] if by else tests)}
            rows.append(row | asdict(mutant) | {"tests": len(tests)})
            _write(out, [*rows, *known.values()])
            word = "SURVIVED" if row["survived"] else "killed"
            print(f"{i + 1}/{len(chosen)} {word} {_text(rows[-1])}", flush=True)
    _write(out, rows)
    return rows


def _text(row: Mapping[str, Any]) -> str:
    return f"src/coterie/{row['module']}:{row['line']}: {row['before']}  →  {row['after']}  ({row['tests']} tests)"


def _write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    out.write_text(f'{{"mutants": [\n{lines}\n]}}\n', encoding="utf-8")


def main(words: Sequence[str] | None = None) -> None:
    """Try a sample of the mutants and list those that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--module", default="*", help="only modules like this, as methods/ifca*.py")
    parser.add_argument("--out", type=Path, default=ROOT / ".mutants" / "results.json")
    parser.add_argument("--map", type=Path, default=ROOT / ".mutants", help="folder of the lines that each test runs")
    given = parser.parse_args(words)
    all_mutants = mutants([name for name in modules() if fnmatch(name, given.module)])
    random.Random(given.seed).shuffle(all_mutants)  # so that a larger sample holds the smaller ones
    rows = run(all_mutants[: given.count], given.out, given.map)
    survivors = [row for row in rows if row["survived"]]
    killed = Counter(row["module"].split("/")[0] for row in rows if not row["survived"])
    total = Counter(row["module"].split("/")[0] for row in rows)
    for name in sorted(total):
        print(f"{name:12} {killed[name]:4} of {total[name]:4} killed")
    print(f"{'all':12} {len(rows) - len(survivors):4} of {len(rows):4} killed, of {len(all_mutants)} possible")
    for row in survivors:
        print(f"survived: {_text(row)}")


if __name__ == "__main__":
    main()
