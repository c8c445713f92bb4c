"""The command `coterie conformance`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from coterie.runs import write_atomically
from coterie_conformance import CHECKS, check_method, find_subjects
from coterie_conformance.checking import find_check
from coterie_conformance.report import about, as_json, slip_lines, terminal_table
from coterie_conformance.slips import SLIPS
from coterie_conformance.study import measure_slips
from coterie_conformance.subjects import missing_part

EXAMPLES = """\b
Examples:
  coterie conformance
  coterie conformance ifca:k=4 cfl --check partition --check tree
  coterie conformance --slips --seeds 5 --out runs/slips --json slips.json
"""


@click.command(epilog=EXAMPLES)
@click.argument("methods", nargs=-1, metavar="[METHOD]…")
@click.option("--check", "checks", multiple=True, metavar="NAME", help="only this check; may be given several times")
@click.option("--list", "listing", is_flag=True, help="list the checks and what each finds, and check nothing")
@click.option("--slips", is_flag=True, help="measure what the slips of public code do, in place of checking methods")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="seeds of --slips")
@click.option("--out", default="runs/slips", show_default=True, metavar="DIR", help="folder for the cells of --slips")
@click.option("--json", "file", default=None, metavar="FILE", help="write the findings, or the slips, to a file")
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def conformance(
    methods: tuple[str, ...],
    checks: tuple[str, ...],
    listing: bool,
    slips: bool,
    seeds: int,
    out: str,
    file: str | None,
    quiet: bool,
) -> None:
    """Check methods for the slips that public code has: by default all known ones, each in seconds.

    METHOD is a name, with options if need be. The exit code is 1 if a check fails; one that does not apply to a method
    is marked –. With --slips, doubles with a slip each and without it run side by side; the same command resumes.
    """
    if listing:
        for check in CHECKS.values():
            click.echo(f"{check.name}\n    {check.asks}\n    finds: {check.finds}")
        return
    if slips:
        _measure(seeds, Path(out), file, quiet)
        return
    for name in checks:
        find_check(name)
    findings = []
    for subject in find_subjects(methods):
        if (missing := missing_part(subject)) is not None:
            click.echo(f"{subject.name} is left out: {missing}", err=True)
            continue
        findings += check_method(subject, checks)
        if not quiet:
            click.echo(f"checked {subject.name}", err=True)
    command = " ".join(["coterie conformance", *methods, *(f"--check {name!r}" for name in checks)])
    if file:
        write_atomically(Path(file), _text(about(command) | {"findings": as_json(findings)}))
    if not quiet and findings:
        click.echo("\n".join(terminal_table(findings)))
    if any(finding.verdict == "fails" for finding in findings):
        raise SystemExit(1)


def _measure(seeds: int, folder: Path, file: str | None, quiet: bool) -> None:
    log = (lambda text: None) if quiet else (lambda text: click.echo(text, err=True))
    rows = measure_slips(folder, range(seeds), SLIPS, log)
    command = f"coterie conformance --slips --seeds {seeds}"
    if file:
        write_atomically(Path(file), _text(about(command, seeds=list(range(seeds))) | {"slips": rows}))
    if not quiet:
        click.echo("\n".join(slip_lines(rows)))


def _text(content: object) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
