"""A run or a comparison in plain sentences: what the clusters turned out to be, who gained, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.runs.words import mixtures_in_words
from coterie_views.report.reading import RunView
from coterie_views.verdict import FEW_SAMPLES, Judgement, Measure, estimate, judged_by


def run_words(run: RunView, against: Sequence[Judgement] = (), baselines: Sequence[RunView] = ()) -> str:
    """A paragraph on one run, for a reader who has never heard of it."""
    sentences = [
        _setting(run), _clusters(run), _quality(run), _privacy(run), *map(gain_words, against), _cost(run, baselines)
    ]  # fmt: skip
    return " ".join(filter(None, sentences)).replace(" %", "\u00a0%")  # the sign stays on the line of its number


def _setting(run: RunView) -> str:
    rounds, planned = len(run.history), run.config.get("rounds")
    clients = _clients(run)
    text = f"{run.method} trained {clients} {'client' if clients == 1 else 'clients'}"
    if not run.finished:
        return f"{text}. The run is not finished: {rounds} of {planned} rounds are done."
    return f"{text} for {rounds} {'round' if rounds == 1 else 'rounds'}."


def _clients(run: RunView) -> int:
    return run.summary.clients if run.summary is not None else sum(_sizes(run))


def _clusters(run: RunView) -> str:
    sizes = _sizes(run)
    if not sizes:
        return ""
    if len(sizes) == 1:
        return "All clients share one model: no groups of clients were found."
    if len(sizes) == _clients(run):
        return "Every client has a model of its own."
    sentences = [
        f"It found {len(sizes)} clusters, of {_list([str(size) for size in sizes])} clients.",
        "Who is in which only the clients know." if run.summary and run.summary.hidden_sizes is not None else "",
        mixtures_in_words(run.clients.heaviest, run.clients.total),
        _splits(run.split_rounds()),
        _agreement(run.summary.ari if run.summary else None),
    ]
    return " ".join(filter(None, sentences))


def _sizes(run: RunView) -> list[int]:
    if run.summary is not None and run.summary.sizes:
        return run.summary.sizes
    return [cluster.members for cluster in run.history[-1].clusters] if run.history else []


def _splits(rounds: Sequence[int]) -> str:
    if len(rounds) == 1:
        return f"The split came in round {rounds[0]}."
    return f"The first split came in round {rounds[0]}, the last in round {rounds[-1]}." if rounds else ""


def _agreement(ari: float | None) -> str:
    if ari is None:
        return ""
    if ari > 0.999:
        return "They are exactly the groups that were hidden in the data."
    degree = "are nearly" if ari > 0.8 else "are partly" if ari > 0.3 else "have little to do with"
    return f"They {degree} the groups that were hidden in the data (agreement {ari:.2f} of 1)."


def _privacy(run: RunView) -> str:
    """What the models give away, where noise was asked for."""
    spent = run.history[-1].epsilon if run.history else None
    if spent is None:
        return ""
    delta = float(run.config.get("dp_delta") or 1e-5)
    return (
        f"The models are differentially private: of any one client they give away at most ε = {spent:.3g} "
        f"(at δ = {delta:g}). The numbers on this page are exact and not covered by that."
    )


def _quality(run: RunView) -> str:
    """The means over clients and over samples, with their intervals, and the worst tenth; and what is unsure."""
    scores, measure = run.scores, run.scores.measure
    found = estimate(scores.values, scores.samples)
    if found is None or run.summary is None:
        known = [record for record in run.history if record.loss.mean is not None]
        if not known:
            return ""
        measure = judged_by(known[-1])
        return f"The mean {measure.name} is {measure.text(measure.of(known[-1]).mean)} so far."
    text = (
        f"On their own test data, the clients have a mean {measure.name} of {measure.text(found.mean)}"
        f"{_between(measure, found.interval)}; over all test samples together it is {measure.text(found.pooled)}"
        f"{_between(measure, found.pooled_interval)}, for the worst tenth of the clients "
        f"{measure.text(measure.of(run.summary).worst10)}."
    )
    if scores.few:
        text += f" {scores.few} of {len(scores.values)} clients have fewer than {FEW_SAMPLES} test samples."
    return text


def _between(measure: Measure, bounds: tuple[float, float] | None) -> str:
    if bounds is None:
        return ""
    low, high = measure.possible(*bounds)
    return f" (95 % interval {measure.text(low)} to {measure.text(high)})"


def gain_words(against: Judgement) -> str:
    """Who gained and who lost against a baseline."""
    change, gains = against.measure.change, against.gains
    up, down = (sum(sign * gain > 0 for _, gain in gains) for sign in (1, -1))
    text = (
        f"Against {against.baseline}, {up} of {len(gains)} clients gained and {down} lost; {against.measure.name} "
        f"{change(against.difference.mean)} on average, {change(against.difference.pooled)} weighted by test samples."
    )
    if down:
        client = gains[0][0]
        text += f" The worst change is {change(against.differences[client])} ({client})."
    return text


def _cost(run: RunView, baselines: Sequence[RunView]) -> str:
    total, clients = run.bytes().total, max(1, _clients(run))
    if total == 0:
        return "Nothing was sent: the clients worked alone."
    text = f"{size(total)} were sent in all, {size(total / clients)} per client."
    for other in baselines:
        theirs = other.bytes().total
        if theirs:
            ratio = total / theirs
            many = "as much as" if 0.95 < ratio < 1.05 else f"{_times(ratio)} times what"
            text += f" That is {many} {other.method} sent."
    return text


def _times(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 100 else f"{ratio:,.0f}"


def size(count: float) -> str:
    """A number of bytes in words."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.0f} bytes"


def _list(parts: Sequence[str], most: int = 12) -> str:
    """Words joined as in a sentence; a long list is cut short."""
    if len(parts) > most:
        return f"{', '.join(parts[:most])}, …"
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
