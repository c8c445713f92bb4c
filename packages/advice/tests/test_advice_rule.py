"""From evidence to advice: what is recommended for numbers that are given, and how sure it is."""

from __future__ import annotations

import math

import pytest
from scipy.stats import t

from coterie_advice.advice_rule import Difference, Evidence, best_way, confidence, doubt, expected_gain, recommend


def evidence(
    several: float = 0.0,
    personal: float = 0.0,
    local: float = -20.0,
    *,
    error: float = 1.0,
    k: int = 3,
    clients: int = 20,
    skew: float = 0.0,
    epochs: float = 180.0,
    regression: bool = False,
) -> Evidence:
    gains = {"several": several, "personal": personal, "local": local}
    return Evidence(
        clients=clients,
        samples=50,
        rounds=60,
        regression=regression,
        one=80.0,
        gains={way: Difference(gain, error) for way, gain in gains.items()},  # type: ignore[misc]
        k=k,
        skew=skew,
        compared=clients,
        epochs=epochs,
    )


@pytest.mark.parametrize(
    ("seen", "methods"),
    [
        (evidence(), ["fedavg"]),
        (evidence(several=10), ["ifca:k=3", "cfl", "fedavg"]),
        (evidence(several=10, k=1), ["fedavg"]),
        (evidence(several=10, k=11), ["fedavg"]),  # fewer than two clients per cluster
        (evidence(several=1.8), ["fedavg"]),  # within the noise
        (evidence(several=1.8, skew=0.4), ["ifca:k=3", "cfl", "fedavg"]),  # label skew slows FedAvg down
        (evidence(several=1.8, skew=0.4, regression=True), ["fedavg"]),
        (evidence(personal=6), ["ditto", "fedper", "fedavg"]),
        (evidence(personal=6, local=0), ["fedper", "ditto", "fedavg"]),
        (evidence(personal=2.5, error=0.5), ["fedavg"]),  # sure, but too little
        (evidence(personal=4.5, epochs=20), ["fedavg"]),  # own models would not be trained to their end
        (evidence(personal=9, epochs=20), ["ditto", "fedper", "fedavg"]),
        (evidence(several=5.5, personal=6), ["ifca:k=3", "cfl", "fedavg"]),
        (evidence(several=4, personal=6), ["ditto", "fedper", "fedavg"]),
        (evidence(several=6.5, personal=6, k=7), ["ditto", "fedper", "fedavg"]),  # hardly fewer models than clients
        (evidence(several=7.5, personal=6, k=7), ["ifca:k=7", "cfl", "fedavg"]),
        (evidence(personal=6, local=7), ["fedper", "ditto", "fedavg"]),
        (evidence(personal=6, local=9), ["fedper", "local", "fedavg"]),
    ],
)
def test_what_is_recommended(seen: Evidence, methods: list[str]) -> None:
    assert [found.method for found in recommend(seen)] == methods


def test_few_clients_need_a_larger_gain() -> None:
    assert best_way(evidence(personal=5, error=2, clients=4)) is None  # t = 2.5 with 3 degrees of freedom: p = 0.044
    assert best_way(evidence(personal=5, error=2, clients=20)) == "personal"
    assert doubt(Difference(5, 2), 4) == pytest.approx(t.sf(2.5, 3))
    assert doubt(Difference(1, 0), 4) == 0
    assert doubt(Difference(0, 0), 4) == doubt(Difference(1, math.inf), 4) == 1


def test_a_conflict_that_a_few_rounds_show_is_for_cfl() -> None:
    seen = Evidence(10, 50, 60, False, None, {"personal": Difference(1, 1)}, 1, 0.0, 10, conflict=True)
    first, last = recommend(seen)
    assert (first.method, last.method) == ("cfl", "fedavg")
    assert "not to be told" in first.gain_words(seen.unit)
    assert any("no single model fits" in line for line in seen.words())


def test_the_interval_holds_the_gain_and_no_more_than_there_is() -> None:
    low, high = expected_gain(Difference(10, 1))
    assert low < 10 < high
    assert expected_gain(Difference(60, 1), 70)[1] == 70
    assert recommend(evidence(several=60))[0].gain == (pytest.approx(23), pytest.approx(20))


def test_how_sure() -> None:
    assert [confidence(Difference(gain, 1), 20) for gain in (5, 2.5, 1)] == ["sure", "likely", "open"]


def test_the_words_name_what_was_seen() -> None:
    text = " ".join(evidence(several=10, personal=2, skew=0.3).words())
    assert "label mixes differ for 30% of the samples" in text
    assert "3 models that clients choose among: +10.0 ± 1.0 points of accuracy" in text
    assert "gain nothing" in " ".join(evidence(k=1).words())
    assert "of the target's variance lies between clients" in evidence(regression=True).words()[0]
