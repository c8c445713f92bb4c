"""Every method, stopped in the middle and resumed, ends with the bits of a run that was not stopped."""

from __future__ import annotations

import pytest

import coterie
from chaos.killing import outcome
from method_specs import METHODS, spec_of


class Stop(BaseException):
    """What ends a run as a signal would."""


class Stopper:
    """Ends a run after a round."""

    def __init__(self, after):
        self.after = after

    def on_start(self, run, done): ...
    def on_event(self, t, event): ...
    def on_end(self, result): ...
    def on_round(self, record):
        if record.round == self.after:
            raise Stop


@pytest.mark.parametrize("name", METHODS)
def test_every_method_resumes_bit_for_bit(name, tmp_path, monkeypatch):
    """Stopped after the first round, in which many methods cluster, and after the third; not all clients take part."""
    monkeypatch.setattr("coterie.runs.loop.checkpoint_pause", lambda cost: 0.0)
    options = {"scenario": "digits-permuted", "clients": 6, "groups": 2, "samples": 40, "rounds": 4, "seed": 3,
               "model": "mlp:hidden=8", "participation": 0.7, "workers": 1}  # fmt: skip
    coterie.run(spec_of(name), out=tmp_path / "whole", **options)
    expected = outcome(tmp_path / "whole")
    for after in (1, 3):
        out = tmp_path / f"stopped-{after}"
        with pytest.raises(Stop):
            coterie.run(spec_of(name), out=out, callbacks=[Stopper(after)], **options)
        assert not (out / "summary.json").exists()
        coterie.resume(out, workers=1)
        assert outcome(out) == expected
