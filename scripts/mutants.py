"""Which changes of the code do its nearest tests not notice? `make mutants`, or `python scripts/mutants.py --help`.

A mutant is a module with one small change: a comparison, an operator, a number, a condition or a call. The mutants are
a sample by the seed of all that the modules in TARGETS have. Each is put into a copy of the sources, and the tests
nearest to its module are run on that copy until one fails. The results are a JSON file; a run that finds it continues
it, and tries anew what has changed since: the module or its tests.

Some mutants compute the same as the code and cannot be found: read the survivors one by one.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TARGETS = ("methods/*", "privacy/*", "clustering/*", "runs/loop.py")
ALSO = {
    "methods/*": ["reference", "test_own_method.py"],
    "methods/aggregation.py": ["methods/test_fedavg.py", "privacy/test_private_runs.py"],
    "methods/averaging.py": ["methods/test_fedavg.py", "methods/test_ifca.py", "methods/test_groups.py"],
    "methods/base.py": ["methods/test_options.py", "methods/test_cfl.py"],
    "methods/compared.py": ["methods/test_splitting.py", "methods/test_cfl.py", "privacy/test_projection.py"],
    "methods/fallback.py": ["methods/test_cfl.py", "runs/test_given.py"],
    "methods/fed[bp]*.py": ["methods/test_fedavg_relatives.py"],
    "methods/fed[ers]*.py": ["methods/test_mixture_methods.py", "methods/test_flt.py"],
    "methods/fixed_clusters.py": ["methods/test_groups.py", "methods/test_flhc.py", "methods/test_oneshot.py"],
    "methods/graph_averaging.py": ["methods/test_flt.py"],
    "methods/ifca_*.py": ["methods/test_ifca.py", "privacy/test_hidden_choice.py"],
    "methods/mixtures.py": ["methods/test_mixture_methods.py", "runs/test_served_mixtures.py"],
    "methods/option_types.py": ["methods/test_options.py", "methods/test_published.py"],
    "methods/pca_kmeans_hc.py": ["methods/test_flt.py"],
    "methods/placing.py": ["methods/test_cfl.py", "runs/test_newcomers.py"],
    "methods/population.py": ["methods/test_cfl.py", "runs/test_newcomers.py", "flower/test_joins.py"],
    "methods/server.py": ["methods/test_fedavg.py", "methods/test_aggregation.py", "privacy/test_private_runs.py"],
    "methods/splitting/*": ["methods/test_splitting.py", "methods/test_cfl.py", "privacy/test_private_checks.py"],
    "methods/tree.py": ["methods/test_cfl.py", "runs/test_newcomers.py"],
    "privacy/*": ["privacy/test_private_runs.py"],
    "privacy/noisy_sum.py": ["privacy/test_accounting.py"],
    "privacy/projection.py": ["privacy/test_private_checks.py"],
    "privacy/secure_*.py": ["privacy/test_active_parties.py", "privacy/test_hidden_choice.py"],
    "clustering/blocks.py": ["clustering/test_divergence.py", "clustering/test_cosine.py"],
    "clustering/dendrogram.py": ["clustering/test_bipartition.py", "clustering/test_agglomerative.py"],
    "clustering/principal_angles.py": ["clustering/test_agglomerative.py", "methods/test_pacfl.py"],
    "runs/loop.py": ["runs/test_bytes_of_a_run.py", "runs/test_folder.py", "runs/test_stopping.py", "runs/test_api.py",
                     "runs/test_evaluation.py", "runs/test_resume_methods.py", "runs/test_last_round.py"],
}  # fmt: skip
"""The nearest tests of modules, below tests/, beside the file in tests/PACKAGE that is named for the module."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
}  # fmt: skip
NAMES = {"min": "max", "any": "all", "argmin": "argmax", "clamp_min": "clamp_max", "amin": "amax", "sum": "max"}
NAMES |= {other: name for name, other in NAMES.items() if name != "sum"}
UNCHANGED = (ast.Raise, ast.Assert, ast.JoinedStr)
"""What is not changed: errors and their texts."""
SECONDS_PER_TEST = 120
"""A mutant may never end: a test that takes longer has noticed it."""


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
            if isinstance(child, ast.AST) and field not in left_out and not isinstance(child, UNCHANGED):
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
    return [name for name in found if any(fnmatch(name, target) for target in TARGETS)]


def nearest(module: str) -> list[str]:
    """The tests that are run for a module, nearest first, relative to the repository."""
    path = Path(module)
    own = f"{path.parts[0]}/test_{path.stem}.py"
    also = [test for pattern, tests in reversed(ALSO.items()) if fnmatch(module, pattern) for test in tests]
    found = [own, *also] if (ROOT / "tests" / own).exists() else also
    return [f"tests/{test}" for test in dict.fromkeys(found)]


def mutants(names: Sequence[str]) -> list[Mutant]:
    """All mutants of the modules."""
    found = []
    for name in names:
        for number, change in enumerate(changes(ast.parse((SOURCE / "coterie" / name).read_text(encoding="utf-8")))):
            found.append(Mutant(name, number, change.line, *(text.strip() for text in change.texts())))
    return found


def mutated(text: str, number: int) -> str:
    """A module's text with one change; comments are gone."""
    tree = ast.parse(text)
    change = changes(tree)[number]
    setattr(change.node, change.field, change.value)
    return ast.unparse(tree)


def digest(mutant: Mutant) -> str:
    """Of the mutant and of its nearest tests: what a result holds for."""
    found = hashlib.sha256(
        mutated((SOURCE / "coterie" / mutant.module).read_text(encoding="utf-8"), mutant.number).encode()
    )
    for test in nearest(mutant.module):
        path = ROOT / test
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


class Copy:
    """A copy of the sources, to which the mutants go one after the other."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.copytree(SOURCE, self.source, ignore=shutil.ignore_patterns("__pycache__"))
        self.passing: set[tuple[str, ...]] = set()
        path = os.pathsep.join([str(self.source), os.environ.get("PYTHONPATH", "")])
        self.environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}

    def survives(self, mutant: Mutant) -> bool:
        """Whether the nearest tests pass with the mutant, as they do without it."""
        tests = nearest(mutant.module)
        if tuple(tests) not in self.passing:
            if not self._pass(tests):
                raise SystemExit(f"{' '.join(tests)}: fail without any mutant")
            self.passing.add(tuple(tests))
        file = self.source / "coterie" / mutant.module
        text = file.read_text(encoding="utf-8")
        file.write_text(mutated(text, mutant.number), encoding="utf-8")
        try:
            return self._pass(tests)
        finally:
            file.write_text(text, encoding="utf-8")

    def _pass(self, tests: Sequence[str]) -> bool:
        words = ["-q", "-x", f"--timeout={SECONDS_PER_TEST}", *tests]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=self.environment, capture_output=True, text=True
        )
        if done.returncode > 2:  # of pytest: it was called wrongly, or found no tests
            raise SystemExit(done.stdout + done.stderr)
        return done.returncode == 0


def run(chosen: Sequence[Mutant], out: Path) -> list[dict[str, Any]]:
    """The results of the mutants, those of the file where they still hold; it is written after each."""
    known = {row["digest"]: row for row in json.loads(out.read_text())["mutants"]} if out.exists() else {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Copy(Path(folder))
        for i, mutant in enumerate(chosen):
            mark = digest(mutant)
            row = known.get(mark) or asdict(mutant) | {"survived": place.survives(mutant), "digest": mark}
            rows.append(asdict(mutant) | {"survived": row["survived"], "digest": mark})
            rest = [other for other in known.values() if other["digest"] not in {one["digest"] for one in rows}]
            _write(out, rows + rest)
            word = "SURVIVED" if row["survived"] else "killed"
            print(
                f"{i + 1}/{len(chosen)} {word} {mutant.module}:{mutant.line} {mutant.before}  →  {mutant.after}",
                flush=True,
            )
    _write(out, rows)
    return rows


def _write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    out.write_text(json.dumps({"mutants": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> None:
    """Try a sample of the mutants and list those that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--module", default="*", help="only modules like this, as methods/ifca*.py")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "mutants.json")
    given = parser.parse_args(words)
    all_mutants = mutants([name for name in modules() if fnmatch(name, given.module)])
    random.Random(given.seed).shuffle(all_mutants)  # so that a larger sample holds the smaller ones
    rows = run(all_mutants[: given.count], given.out)
    survivors = [row for row in rows if row["survived"]]
    killed = Counter(row["module"].split("/")[0] for row in rows if not row["survived"])
    total = Counter(row["module"].split("/")[0] for row in rows)
    for name in sorted(total):
        print(f"{name:12} {killed[name]:4} of {total[name]:4} killed")
    print(f"{'all':12} {len(rows) - len(survivors):4} of {len(rows):4} killed, of {len(all_mutants)} possible")
    for row in survivors:
        print(f"survived: src/coterie/{row['module']}:{row['line']}: {row['before']}  →  {row['after']}")


if __name__ == "__main__":
    main()
