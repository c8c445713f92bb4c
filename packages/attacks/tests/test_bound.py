"""The published breakdown point: how different honest clients are, and how many hostile ones no algorithm stands."""

from __future__ import annotations

import pytest
import torch

from coterie_attacks.bound import breakdown, dissimilarity, main


def test_equal_clients_stand_up_to_a_half_and_different_ones_fewer():
    equal = torch.ones(4, 3)
    assert breakdown(dissimilarity(equal), 20) == pytest.approx(10)
    apart = torch.tensor([[0.0], [2.0], [0.0], [2.0]])  # a mean of 1, a spread of 1
    assert dissimilarity(apart) == pytest.approx(1)
    assert breakdown(1, 20) == pytest.approx(20 / 3)


def test_it_is_printed_by_scenario(capsys):
    main(["breast-cancer:none+dirichlet(1000)", "breast-cancer:none+dirichlet(0.05)"], "logistic", None)
    even, skewed = (float(line.split("|")[2]) for line in capsys.readouterr().out.splitlines())
    assert even < skewed
