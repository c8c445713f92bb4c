"""Evaluation of several clients' samples in one pass, for modules in which no sample's outputs depend on the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from coterie.federation import Split
from coterie.trainers.pure_code import hooked

KNOWN = ("torch.nn.modules.", "coterie.models.", "coterie.trainers.")
"""Packages whose modules have no state beside their tensors, and no branches on the values of their inputs."""
BEFORE, KEPT, AFTER = 2, 3, 4
"""Samples of the trial whose outputs are looked at, and samples that stand before and after them."""
LOUDER = 3.0
"""What real inputs beside them are multiplied by the second time, so that extremes over a batch move too."""


def independent_samples(module: nn.Module, compute: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether the outputs of a sample are the same whatever stands beside it in a pass, as far as a trial shows.

    Args:
        module: what is evaluated. Modules with hooks, and modules of the user's own that branch on their inputs (which
            a trace cannot follow), are not tried: the answer is no.
        compute: its outputs in evaluation mode.
        x: one sample or more; the trial's inputs have its shape and type.

    Returns:
        Whether some samples' outputs are equal to the bit beside two sets of others, and equal to rounding alone.
    """
    if any(map(hooked, module.modules())) or not _without_branches(module):
        return False
    kept, before, after, *louder = _trial(x[:1]).split([KEPT, BEFORE, AFTER, BEFORE, AFTER])
    if torch.equal(before, louder[0]) or torch.equal(after, louder[1]):
        return False
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            beside = compute(torch.cat([before, kept, after]))
            beside_louder = compute(torch.cat([louder[0], kept, louder[1]]))
            alone = compute(kept)
        own = slice(BEFORE, BEFORE + KEPT)
        torch.testing.assert_close(beside[own], alone)
    except Exception:  # whatever the module's code raises on such inputs, or a difference
        return False
    return len(beside) == BEFORE + KEPT + AFTER and torch.equal(beside[own], beside_louder[own])


def _without_branches(module: nn.Module) -> bool:
    if all(type(part).__module__.startswith(KNOWN) for part in module.modules()):
        return True
    try:
        fx.Tracer().trace(module)
    except Exception:  # whatever the module's code raises when it is given no numbers
        return False
    return True


def _trial(sample: Tensor) -> Tensor:
    """Inputs like the sample: reals around it, or whole numbers up to its largest."""
    generator = torch.Generator().manual_seed(0)
    shape = (KEPT + 2 * (BEFORE + AFTER), *sample.shape[1:])
    if not sample.is_floating_point():
        return torch.randint(int(sample.max()) + 1, shape, generator=generator).to(sample.dtype)
    rows = sample + torch.randn(shape, generator=generator, dtype=sample.dtype)
    rows[-(BEFORE + AFTER) :] *= LOUDER
    return rows


class Piece(NamedTuple):
    """Samples of one client that are evaluated together."""

    client: int
    x: Tensor
    y: Tensor


def passes(data: Sequence[Split], rows: int, joined: bool) -> Iterator[list[Piece]]:
    """The pieces of each pass: every client's samples by `rows`, where `joined` until there are that many together.

    They depend on the clients' data alone. Samples of different shapes or types are not joined.
    """
    together: list[Piece] = []
    count = 0
    for i, split in enumerate(data):
        for x, y in zip(split.x.split(rows), split.y.split(rows), strict=True):
            if not len(y):
                continue
            if together and (not joined or _form(together[0].x, together[0].y) != _form(x, y)):
                yield together
                together, count = [], 0
            together.append(Piece(i, x, y))
            count += len(y)
            if count >= rows:
                yield together
                together, count = [], 0
    if together:
        yield together


def _form(x: Tensor, y: Tensor) -> tuple[object, ...]:
    return x.shape[1:], x.dtype, y.shape[1:], y.dtype


def together(pieces: Sequence[Piece]) -> tuple[Tensor, Tensor, Tensor]:
    """The client of each sample, the inputs and the targets, of all pieces one after another; one is not copied."""
    owners = torch.tensor([piece.client for piece in pieces])
    owners = owners.repeat_interleave(torch.tensor([len(piece.y) for piece in pieces]))
    if len(pieces) == 1:
        return owners, pieces[0].x, pieces[0].y
    return owners, torch.cat([piece.x for piece in pieces]), torch.cat([piece.y for piece in pieces])
