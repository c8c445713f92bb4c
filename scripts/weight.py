"""How heavy the code is, as one table: `python scripts/weight.py [FOLDER …]`, a column for each (default: this one).

Sizes are of Python files without tests; "core" is src/coterie, "packages" are packages/*/src. Complexity is McCabe's,
of the functions of modules and classes: 1, and 1 for each if, loop, handler, assertion, case, comprehension, condition
of one, and further operand of and/or. A line of code is one that is neither blank, nor a comment, nor a docstring.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from import_cycles import cycles, import_graph

METHODS = ("cfl", "ifca", "fedcuau", "flt")
HELPERS = (
    *("graph_averaging", "splitting", "tree"),
    *(
        "starts",
        "restarts",
        "variants",
        "choices",
        "hidden_choices",
        "local_work",
        "sharing",
    ),
    *("heterogeneity", "nested_sums"),
)
"""Files of methods/ that are parts of the four papers' methods by other names."""
FLAGS = ("repeatable", "remote", "secure", "least_in_sum", "halves")
"""Attributes by which an engine says which it is."""
SENDERS = frozenset(
    ("ask", "train", "aggregate", "combine", "stream", "clipped", "sum_vectors", "average_clusters", "exchange")
)
DECISIONS = frozenset(
    ("benefit", "auto", "closed_form", "served", "ifca_growing", "relatives_growing", "halves", "serving", "moments")
)
"""Modules, beside those of methods/splitting, that decide how clients are served, or ask them for what decides."""
DIALECT = (
    *(
        "told",
        "tells?",
        "telling",
        "nobody",
        "somebody",
        "everybody",
        "so many",
        "belies?",
        "a word on",
        "mend(?:ed|s)?",
    ),
    *("camps?", "pulls? harder", "pulled", "anew", "goes? on with", "of several kinds", "would not be true"),
    *("costs one line", "samples a client", "assurance", "crates?", "shelf", "boxed", "parcels?", "errands?", "crew"),
    *("worksite", "workbench", "harvest", "teller", "tally", "summon", "deaf"),
)
"""Words that stand in the style guide's list of those to replace, as patterns."""
WORDS = re.compile(rf"(?<![a-z])(?:{'|'.join(DIALECT)})(?![a-z])", re.IGNORECASE)
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
UNCODED = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)
RUN = ["run", "--method", "cfl", "--rounds", "12", "--workers", "1", "--out"]
TRACE = f"""
import json, os, sys, tempfile
os.chdir(tempfile.mkdtemp())
from coterie.cli import main

def run(folder):
    try:
        main({RUN!r} + [folder])
    except SystemExit as end:
        assert not end.code, end.code

def of_core(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0] == "coterie"

def follow(frame, event, value):
    global deepest
    if event == "call" and of_core(frame):
        entered.add(frame.f_globals["__name__"])
        depth = 0
        while frame is not None:
            depth += of_core(frame)
            frame = frame.f_back
        deepest = max(deepest, depth)

entered, deepest = set(), 0
run("first")  # after it, everything is imported
sys.setprofile(follow)
run("second")
sys.setprofile(None)
imported = [name for name in sys.modules if name.partition(".")[0] == "coterie"]
print(json.dumps([len(imported), len(entered), deepest]))
"""


def size(files: Iterable[Path]) -> str:
    """Lines and files."""
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    return f"{sum(lines):,} in {len(lines)}"


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module and of its classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            yield child
        elif isinstance(child, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from functions(child)


def complexity(node: ast.AST) -> int:
    """McCabe's number of a function, without those of the functions in it, minus 1."""
    found = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            continue
        found += isinstance(child, BRANCHES) + complexity(child)
        if isinstance(child, ast.BoolOp):
            found += len(child.values) - 1
        elif isinstance(child, ast.comprehension):
            found += 1 + len(child.ifs)
    return found


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines of code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in UNCODED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression is made of numbers alone."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def is_decision(path: Path) -> bool:
    """Whether a module has a part in what is decided automatically."""
    return (path.parent.name == "splitting" and path.stem != "paper") or path.stem in DECISIONS


def number_constants(tree: ast.Module, several: bool = False) -> int:
    """Numbers with a name of their own in capitals at the top of a module; with `several`, tuples of them too."""

    def counts(value: ast.expr | None) -> bool:
        return is_number(value) or (several and isinstance(value, ast.Tuple) and all(map(is_number, value.elts)))

    named = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and counts(node.value)]
    targets = [node.targets[0] if isinstance(node, ast.Assign) else node.target for node in named]
    return sum(isinstance(target, ast.Name) and target.id.isupper() for target in targets)


def flag_reads(tree: ast.Module) -> int:
    """Lines that read a flag of an engine."""
    reads = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in FLAGS]
    return len({node.lineno for node in reads if ast.unparse(node.value).endswith("engine")})


def parameters_of_run(trees: Iterable[ast.Module]) -> int:
    """The parameters of `coterie.run`, of the modules of runs/."""
    (run,) = [node for tree in trees for node in tree.body if isinstance(node, FUNCTIONS) and node.name == "run"]
    return sum(map(len, (run.args.posonlyargs, run.args.args, run.args.kwonlyargs)))


def traced(folder: Path) -> list[int]:
    """Modules of the core that `coterie run --method cfl` imports, those that it enters, and its deepest stack."""
    sources = [folder / "src", *sorted(folder.glob("packages/*/src"))]
    with tempfile.TemporaryDirectory() as place:
        settings = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sources)), "TMPDIR": place}
        command = [sys.executable, "-c", TRACE]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def complexity_rows(trees: dict[Path, ast.Module]) -> dict[str, str]:
    """Shares of complex functions, and the worst."""
    found = {
        f"{path.stem}.{node.name}": 1 + complexity(node) for path, tree in trees.items() for node in functions(tree)
    }
    numbers = [1 + complexity(node) for tree in trees.values() for node in functions(tree)]
    rows = {}
    for least in (11, 20):
        count = sum(number >= least for number in numbers)
        rows[f"functions of complexity ≥ {least}"] = f"{count} of {len(numbers):,} ({100 * count / len(numbers):.1f} %)"
    worst = sorted(found, key=lambda name: -found[name])[:4]
    return rows | {"worst": ", ".join(f"{name} {found[name]}" for name in worst)}


def measures(folder: Path) -> dict[str, str]:
    """Every measure of a checkout by its name."""
    core = sorted((folder / "src" / "coterie").rglob("*.py"))
    beside = sorted(folder.glob("packages/*/src/**/*.py"))
    methods = [path for path in core if path.parent.name == "methods"]
    runs = [path for path in core if path.parent.name == "runs"]
    own = [path for path in methods if path.stem.partition("_")[0] in METHODS or path.stem in HELPERS]
    texts = {path: path.read_text(encoding="utf-8") for path in core}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    nodes = sum(1 for tree in trees.values() for _ in ast.walk(tree))
    lines = sum(code_lines(text, trees[path]) for path, text in texts.items())
    groups = cycles(import_graph(folder / "src"))
    defined = {node.name for path in methods for node in functions(trees[path])}
    imported, entered, deepest = traced(folder)
    return {
        "core, lines in files": size(core),
        "packages": size(beside),
        "sum": size([*core, *beside]),
        "runs/": size(runs),
        "the four methods": size(own),
        **{f"methods/{name}.py": size(path for path in methods if path.stem == name) for name in METHODS},
        "modules that `run cfl` imports": str(imported),
        "modules that `run cfl` enters": str(entered),
        "deepest stack of `run cfl`": str(deepest),
        **complexity_rows(trees),
        "syntax nodes per line of code": f"{nodes / lines:.1f}",
        "import cycles (modules)": f"{len(groups)} ({', '.join(str(len(group)) for group in groups) or '–'})",
        "parameters of coterie.run": str(parameters_of_run(trees[path] for path in runs)),
        "ways to send": str(len(defined & SENDERS)),
        "engine flags read in methods/": str(sum(flag_reads(trees[path]) for path in methods)),
        "words of the dialect": str(sum(len(WORDS.findall(text)) for text in texts.values())),
        "numeric module constants": str(sum(map(number_constants, trees.values()))),
        "numbers of automatic decisions": str(
            sum(number_constants(tree, several=True) for path, tree in trees.items() if is_decision(path))
        ),
    }


def main(folders: list[Path]) -> None:
    """Print the table."""
    columns = [measures(folder) for folder in folders]
    print("| measure | " + " | ".join(folder.name for folder in folders) + " |")
    print("|---" * (len(folders) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    main([Path(word).resolve() for word in sys.argv[1:]] or [Path(__file__).resolve().parents[1]])
