"""A run or a comparison in plain sentences: what the clusters turned out to be, who gained, and was it worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.report.comparing import measure_of
from coterie.report.reading import Gains, RunView
from coterie.runs.words import mixtures_told

NOTICEABLE = 0.01
"""A difference in accuracy below one percentage point is called small."""


def run_words(run: RunView, gains: Sequence[Gains] = (), baselines: Sequence[RunView] = ()) -> str:
    """A paragraph on one run, for somebody who has never heard of it."""
    sentences = [
        _setting(run), _clusters(run), _quality(run), _privacy(run), *map(gain_words, gains), _cost(run, baselines)
    ]  # fmt: skip
    return _bound(" ".join(sentence for sentence in sentences if sentence))


def _setting(run: RunView) -> str:
    rounds, planned = len(run.history), run.config.get("rounds")
    clients = _clients(run)
    text = f"{run.method} trained {clients} {'client' if clients == 1 else 'clients'}"
    if not run.finished:
        return f"{text}. The run is not finished: {rounds} of {planned} rounds are done."
    return f"{text} for {rounds} {'round' if rounds == 1 else 'rounds'}."


def _clients(run: RunView) -> int:
    if run.summary is not None:
        return run.summary.clients
    return sum(cluster.members for cluster in run.history[-1].clusters) if run.history else 0


def _clusters(run: RunView) -> str:
    sizes = list(run.summary.sizes) if run.summary else []
    if not sizes and run.history:
        sizes = [cluster.members for cluster in run.history[-1].clusters]
    if not sizes:
        return ""
    if len(sizes) == 1:
        return "All clients share one model: no groups of clients were told apart."
    if len(sizes) == _clients(run):
        return "Every client has a model of its own."
    text = f"It found {len(sizes)} clusters, of {_list([str(size) for size in sizes])} clients."
    if run.summary is not None and run.summary.hidden_sizes is not None:
        text += " Who is in which only the clients know."
    if told := mixtures_told(run.clients.heaviest, run.clients.total):
        text += f" {told}"
    rounds = run.split_rounds()
    if len(rounds) == 1:
        text += f" The split came in round {rounds[0]}."
    elif rounds:
        text += f" The first split came in round {rounds[0]}, the last in round {rounds[-1]}."
    ari = run.summary.ari if run.summary else None
    return text + (f" {_agreement(ari)}" if ari is not None else "")


def _agreement(ari: float) -> str:
    if ari > 0.999:
        return "They are exactly the groups that were hidden in the data."
    if ari > 0.8:
        return f"They are nearly the groups that were hidden in the data (agreement {ari:.2f} of 1)."
    if ari > 0.3:
        return f"They are partly the groups that were hidden in the data (agreement {ari:.2f} of 1)."
    return f"They have little to do with the groups that were hidden in the data (agreement {ari:.2f} of 1)."


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
    records = run.evaluated()
    accuracy = run.summary.accuracy if run.summary else (records[-1].accuracy if records else None)
    if accuracy is None or accuracy.mean is None or accuracy.worst10 is None:
        loss = run.summary.loss if run.summary else None
        if loss is None or loss.mean is None or loss.worst10 is None:
            return ""
        return (
            f"On its own test data, the average client has a loss of {loss.mean:.4g}, "
            f"the worst tenth of the clients {loss.worst10:.4g}."
        )
    return (
        f"On its own test data, the average client gets {100 * accuracy.mean:.1f} % right, "
        f"the worst tenth of the clients {100 * accuracy.worst10:.1f} %."
    )


def gain_words(gains: Gains) -> str:
    """Who gained and who lost against a baseline."""
    values = gains.values
    up, down = sum(v > 0 for v in values), sum(v < 0 for v in values)
    text = (
        f"Against {gains.baseline}, {up} of {len(values)} clients gained and {down} lost; "
        f"on average {gains.measure.change(gains.mean)}{'' if gains.measure.unit else ' of loss less'}."
    )
    if down:
        client, worst = gains.by_client[0]
        text += f" The worst change is {gains.measure.change(worst)} ({client})."
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


def verdict(gains: Sequence[Gains]) -> str:
    """Was it worth it? Measured against the baseline that serves the clients best."""
    if not gains:
        return ""
    rival = min(gains, key=lambda one: one.mean)
    losers, everybody = sum(value < -NOTICEABLE for value in rival.values), len(rival.values)
    if rival.mean < -NOTICEABLE:
        lead = f"{-100 * rival.mean:.1f} points"
        return f"Was it worth it? No: {rival.baseline} serves the average client better, by {lead}."
    if rival.mean <= NOTICEABLE:
        return f"Was it worth it? Hardly: on average {rival.baseline} serves the clients about as well."
    if losers <= everybody // 10:
        names = _list([one.baseline for one in gains])
        return f"Was it worth it? Yes: clients are clearly better served than with {names}."
    who = "most" if losers < everybody / 2 else "some"
    return (
        f"Was it worth it? For {who}: the average client gains over {rival.baseline}, "
        f"yet {losers} of {everybody} lose more than a point."
    )


def comparison_words(table: Mapping[str, Any]) -> str:
    """A paragraph on a comparison: who came first, by how much, and at what cost."""
    measure = measure_of(table)
    rated = {row["method"]: row for row in table["rows"] if row[measure.name] is not None}
    if not rated:
        return "No run has finished yet."
    best = rated[table["best"]]
    seeds = len(table["seeds"])
    times = "once" if seeds == 1 else f"with {seeds} seeds"
    lines = [
        f"{len(table['rows'])} methods were run on the same clients with the same budget, {times}. "
        f"{best['method']} has the best mean {measure.name}: {measure.text(best[measure.name]['mean'])}, "
        f"and {measure.text(best['worst10']['mean'])} for the worst tenth of the clients."
    ]
    for name, meaning in (("fedavg", "one model for all"), ("local", "every client on its own")):
        if name in rated and name != best["method"]:
            gap = best[measure.name]["mean"] - rated[name][measure.name]["mean"]
            lines.append(f"The difference to {name} ({meaning}) is {measure.change(gap)}.")
    fair = max(rated.values(), key=lambda row: measure.gain(row["worst10"]["mean"], 0.0))
    if fair is not best:
        lines.append(
            f"The worst-served clients do best with {fair['method']} ({measure.text(fair['worst10']['mean'])})."
        )
    spoken = [row for row in rated.values() if row["bytes"]["mean"] > 0]
    if len(spoken) > 1:
        least, most = (f(spoken, key=lambda row: row["bytes"]["mean"]) for f in (min, max))
        lines.append(
            f"{least['method']} sent least ({size(least['bytes']['mean'])}), "
            f"{most['method']} most ({size(most['bytes']['mean'])})."
        )
    return _bound(" ".join(lines))


def _bound(text: str) -> str:
    """The text with percent signs that stay on the line of their number."""
    return text.replace(" %", "\u00a0%")


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
