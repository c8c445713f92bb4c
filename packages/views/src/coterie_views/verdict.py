"""Was it worth it? A run against FedAvg, local models and a constant answer, paired per client, by one test.

The report, the terminal, the live page and notebooks all say what `verdict` says. Differences per client are not
independent: all clients share one training with one seed, and another seed moves many of them together. So the error of
their mean is s² (1/clients + test samples / training samples), the correction of Nadeau and Bengio (2003) for test
results that share training data, with Student's t. How often runs that differ in the seed alone are called different is
in docs/guide/comparing.md. With several seeds `coterie compare` tests over the seeds, which finds smaller differences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.runs.folder import RunFolder
from coterie.runs.records import ClientRecord, RoundRecord, Spread, Summary

if TYPE_CHECKING:
    from coterie.runs import Result

LEVEL = 0.05
"""The chance of calling a run better or worse than any of its baselines where it is neither."""
FEW_SAMPLES = 30
"""Fewer test samples are marked: the accuracy of one client is then unsure by up to 18 points and more (95 %)."""
PLAIN = ("fedavg", "local")
"""The methods that a run is measured against where they lie beside it."""


@dataclass(frozen=True)
class Measure:
    """A metric as people read it: accuracies in per cent and compared in points, losses compared by their ratio.

    A loss has the unit of its targets and is many times higher for some clients, so that a mean of differences would be
    those clients'.
    """

    name: str
    higher_is_better: bool

    @property
    def title(self) -> str:
        """What an axis says."""
        return "accuracy, %" if self.higher_is_better else "loss"

    @property
    def unit(self) -> str:
        """Of a difference."""
        return "points" if self.higher_is_better else "%"

    def shown(self, value: float) -> float:
        """A value as an axis has it."""
        return 100 * value if self.higher_is_better else value

    def text(self, value: float | None) -> str:
        """A value, such as "94.5 %" or "0.0312"."""
        if value is None:
            return "–"
        return f"{100 * value:.1f}\u00a0%" if self.higher_is_better else f"{value:.4g}"

    def possible(self, low: float, high: float) -> tuple[float, float]:
        """The ends of an interval cut to what a value can be."""
        return max(low, 0.0), min(high, 1.0) if self.higher_is_better else high

    def paired(self, value: float | None) -> float | None:
        """What differences are taken of: the value, or the logarithm of a loss; None where that does not exist."""
        if value is None or self.higher_is_better:
            return value
        return math.log(value) if value > 0 else None

    def difference(self, own: float, other: float) -> float | None:
        """`own` minus `other`, or for a loss the logarithm of their ratio; None where that does not exist."""
        ours, theirs = self.paired(own), self.paired(other)
        return None if ours is None or theirs is None else ours - theirs

    def gain(self, difference: float) -> float:
        """A difference that is positive where it is an improvement."""
        return difference if self.higher_is_better else -difference

    def amount(self, difference: float) -> float:
        """A difference in its unit: points, or per cent of the other loss."""
        return 100 * (difference if self.higher_is_better else math.expm1(difference))

    def change(self, difference: float, *, unit: bool = True) -> str:
        """A signed difference, such as "+1.2 points" or "−31 %"."""
        amount = self.amount(difference)
        form = "+.1f" if self.higher_is_better else "+,.0f" if abs(amount) >= 100 else "+.3g"
        text = f"{amount:{form}}".replace("-", "−")
        return f"{text}\u00a0{self.unit}" if unit else text

    def of(self, record: RoundRecord | Summary) -> Spread:
        """The measure's spread over the clients."""
        return record.metrics.get(self.name, Spread())


ACCURACY = Measure("accuracy", True)
LOSS = Measure("loss", False)


def judged_by(record: RoundRecord | Summary) -> Measure:
    """Accuracy where a run has one, else the loss."""
    return ACCURACY if record.accuracy.mean is not None else LOSS


def interval(sample: Sequence[float], level: float = LEVEL, shared: float = 0.0) -> tuple[float, float] | None:
    """The interval of the mean by Student's t with n − 1 degrees of freedom; None with a single value."""
    if len(sample) < 2:
        return None
    from scipy.stats import t

    mean, error = statistics.fmean(sample), standard_error(sample, shared)
    half = float(t.isf(level / 2, len(sample) - 1)) * error
    return mean - half, mean + half


def standard_error(sample: Sequence[float], shared: float = 0.0) -> float:
    """The standard error of the mean, s √(1/n + shared), s² with n − 1; 0 for a single value.

    `shared` is test samples over training samples, where the values are of models that share their training (Nadeau and
    Bengio 2003).
    """
    return statistics.stdev(sample) * math.sqrt(1 / len(sample) + shared) if len(sample) > 1 else 0.0


@dataclass
class ClientScores:
    """What the clients of a run are judged by, each on its own test data."""

    accuracy: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    """Test samples."""
    constants: dict[str, float] = field(default_factory=dict)
    """The same of a constant answer: the client's most common training label, or the mean of its training targets."""

    @classmethod
    def of(cls, rows: Iterable[ClientRecord]) -> ClientScores:
        """The scores of these clients."""
        found = cls()
        for row in rows:
            found.add(row)
        return found

    def add(self, row: ClientRecord) -> None:
        """Take one client in."""
        self.samples[row.client] = row.test_samples
        for known, value in ((self.accuracy, row.accuracy), (self.loss, row.loss), (self.constants, row.constant)):
            if value is not None:
                known[row.client] = value

    @property
    def measure(self) -> Measure:
        """Accuracy, or the loss where targets are real numbers."""
        return ACCURACY if self.accuracy or not self.loss else LOSS

    @property
    def values(self) -> dict[str, float]:
        """The measure by client."""
        return self.accuracy if self.measure is ACCURACY else self.loss

    @property
    def few(self) -> int:
        """How many clients have few test samples."""
        return sum(self.samples[client] < FEW_SAMPLES for client in self.values)


@dataclass(frozen=True)
class Estimate:
    """A mean over clients and one over all their test samples, each with its 95 % interval (None for one client)."""

    mean: float
    interval: tuple[float, float] | None
    pooled: float
    pooled_interval: tuple[float, float] | None


def estimate(values: Mapping[str, float], samples: Mapping[str, int]) -> Estimate | None:
    """The mean and the pooled mean of clients' values; the unit of both errors is the client, of these models."""
    clients = [client for client in values if samples.get(client)]
    total = sum(samples[client] for client in clients)
    if not clients:
        return None
    own = [values[client] for client in clients]
    shares = [len(clients) * samples[client] / total for client in clients]
    pooled = sum(share * value for share, value in zip(shares, own, strict=True)) / len(own)
    # Linearised: a ratio's error is that of the mean of its residuals.
    residuals = [pooled + share * (value - pooled) for share, value in zip(shares, own, strict=True)]
    return Estimate(sum(own) / len(own), interval(own), pooled, interval(residuals))


@dataclass(frozen=True)
class Judgement:
    """A run against one baseline; differences are the measure's, of the run's value to the baseline's."""

    baseline: str
    measure: Measure
    differences: Mapping[str, float]
    """By client."""
    difference: Estimate
    interval: tuple[float, float] | None
    """Of the mean difference, at a level at which all baselines' hold together; None for a single client."""

    @property
    def answer(self) -> Literal["better", "worse", "undecided"]:
        """What can be said at the stated level."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return "undecided"
        return "better" if (self.interval[0] > 0) == self.measure.higher_is_better else "worse"

    @property
    def gains(self) -> list[tuple[str, float]]:
        """How much better each client is served, worst first."""
        return sorted(((c, self.measure.gain(d)) for c, d in self.differences.items()), key=lambda pair: pair[1])

    def __str__(self) -> str:
        change, name = self.measure.change, self.measure.name
        ends = () if self.interval is None else self.interval
        between = " to ".join(change(end, unit=False) for end in ends) or "one client alone"
        text = f"{name} {change(self.difference.mean)} ({between})"
        if self.answer == "undecided":
            return f"against {self.baseline}, {text}"
        return f"{self.answer} than {self.baseline}, {text}"


def judge(
    method: ClientScores, baselines: Mapping[str, ClientScores], train_samples: int | None = None
) -> list[Judgement]:
    """A run's clients against those of the baselines, and against a constant answer where the records have one.

    Args:
        method: the run's clients.
        baselines: other runs' clients by the method's name.
        train_samples: training samples of all clients; None, not known, is taken for as many as test samples.
    """
    measure, shared = method.measure, shared_training(method.samples, train_samples)
    against = {name: other.values for name, other in baselines.items() if other.measure is measure}
    if method.constants:
        against["the client's most common label" if measure is ACCURACY else "the client's mean target"] = (
            method.constants
        )
    paired = {name: differences for name, other in against.items() if (differences := _paired(method, other))}
    found = []
    for name, differences in paired.items():
        difference = estimate(differences, method.samples)
        if difference is not None:
            bounds = interval(list(differences.values()), LEVEL / len(paired), shared)
            found.append(Judgement(name, measure, differences, difference, bounds))
    return found


def _paired(method: ClientScores, other: Mapping[str, float]) -> dict[str, float]:
    """The differences of the clients that both have and that have test samples."""
    own, measure = method.values, method.measure
    shared = [client for client in own if client in other and method.samples[client]]
    found = {client: measure.difference(own[client], other[client]) for client in shared}
    return {client: value for client, value in found.items() if value is not None}


def shared_training(samples: Mapping[str, int], train_samples: int | None) -> float:
    """Nadeau and Bengio's test samples over training samples; 1 where the latter are not known."""
    return sum(samples.values()) / train_samples if train_samples else 1.0


def verdict(judgements: Sequence[Judgement]) -> str:
    """Was it worth it, in a sentence; empty where there is nothing to measure it against."""
    if not judgements:
        return ""
    answers = {one.answer for one in judgements}
    lead = "No" if "worse" in answers else "Undecided" if "undecided" in answers else "Yes"
    order = ("worse", "undecided", "better")
    ordered = sorted(judgements, key=lambda one: order.index(one.answer))
    return f"Was it worth it? {lead}: {'; '.join(map(str, ordered))}."


def verdict_note(judgements: Sequence[Judgement]) -> str:
    """What the test behind the verdict covers, and what it does not."""
    if not judgements:
        return ""
    clients = len(judgements[0].differences)
    text = (
        f"In brackets: 95 % intervals{' that hold together' if len(judgements) > 1 else ''}, paired over "
        f"{'1 client' if clients == 1 else f'{clients} clients'} by Student's t, with Nadeau and Bengio's correction "
        "for the training that clients share. They allow for another seed, not for other data."
    )
    if any(one.answer == "undecided" for one in judgements):
        text += " Several seeds find smaller differences: coterie compare --seeds 5."
    return text


def find_plain(path: Path, config: Mapping[str, Any]) -> list[Path]:
    """Folders of finished runs of fedavg and local on the same clients beside this run, in a comparison or not."""
    found = []
    for name in PLAIN:
        for place in (path.parent / name, path.parent.parent / name / path.name):
            folder = RunFolder(place)
            beside = place.resolve() != path.resolve() and folder.has("config.json") and folder.has("summary.json")
            if beside and folder.config().get("federation") == config.get("federation"):
                found.append(place)
                break
    return found


def verdict_of(summary: Summary, clients: Iterable[ClientRecord], path: Path | None = None) -> str:
    """The verdict of a finished run, against what lies beside its folder, if it has one."""
    folders = [] if path is None else [RunFolder(place) for place in find_plain(path, RunFolder(path).config())]
    others = {str(folder.config()["method"]): ClientScores.of(folder.each_client()) for folder in folders}
    return verdict(judge(ClientScores.of(clients), others, summary.train_samples))


def verdicts(results: Sequence[Result]) -> list[str]:
    """Was the last run worth it, against those before it, and what the test covers."""
    last, others = results[-1], {one.summary.method: ClientScores.of(one.clients) for one in results[:-1]}
    found = judge(ClientScores.of(last.clients), others, last.summary.train_samples)
    return [f"{last.summary.method}: {verdict(found)}", verdict_note(found)] if found else []
