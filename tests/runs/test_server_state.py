"""What the server itself keeps comes back with a checkpoint, and rounds after the checkpoint are as if never done."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_resume_methods import Stop, Stopper

import coterie
from coterie.methods import FedAvg
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config
from coterie.runs.folder import RunFolder
from coterie.runs.loop import execute
from method_specs import spec_of

OPTIONS = {"scenario": "digits-permuted", "clients": 4, "groups": 2, "samples": 30, "model": "logistic", "workers": 1}


class LooksFirst:
    """FedAvg whose server looks at the clients' updates before the first round."""

    def start(self, server):
        state = FedAvg().start(server)
        requests = server.training_requests(server.clients, state.model, 0)
        self.shortened = [reply.client for reply in server.ask(requests, [0] * len(requests))]
        return state

    def round(self, state, t, server):
        return FedAvg().round(state, t, server)

    def assignment(self, state, server):
        return FedAvg().assignment(state, server)


class StopsAtStart(Stopper):
    """Ends a run before its first round."""

    def on_start(self, run, done):
        raise Stop


def test_who_was_shortened_before_a_checkpoint_is_reported_after_it(tmp_path):
    config = make_config(OPTIONS | {"rounds": 1, "clip": "0.000001"})

    def made():
        run, used = assemble(config, method=LooksFirst())
        return replace(run, save_every_round=True), used

    run, used = made()
    folder = RunFolder.create(tmp_path / "run", used)
    with pytest.raises(Stop):
        execute(run, folder, [StopsAtStart(0)])
    assert folder.checkpoint().server.shortened == sorted(run.server.clients)
    run, _ = made()
    run.server.aggregation = replace(run.server.aggregation, longest=None)  # so that round 1 shortens none
    [event] = [event for event in execute(run, folder).history[0].events if event.kind == "clipped"]
    assert event.details["clients"] == sorted(run.server.clients)


@pytest.mark.parametrize("method", ["fedavg", "cfl"])
def test_rounds_after_the_checkpoint_are_done_again_with_their_bytes_and_moments(method, tmp_path, monkeypatch):
    options = OPTIONS | {"rounds": 4, "server_optimizer": "adam:lr=0.1", "seed": 2}
    whole = coterie.run(method, **options)
    pauses = iter([0.0, 1e9, 1e9, 1e9])  # a checkpoint after the first round alone
    monkeypatch.setattr("coterie.runs.loop.checkpoint_pause", lambda cost: next(pauses, 1e9))
    with pytest.raises(Stop):
        coterie.run(method, out=tmp_path / "run", callbacks=[Stopper(3)], **options)
    folder = RunFolder(tmp_path / "run")
    assert (folder.checkpoint().round, len(folder.history())) == (1, 3)
    assert folder.checkpoint().server.moments["0"].second is not None
    resumed = coterie.resume(tmp_path / "run", workers=1)
    assert [record.bytes for record in resumed.history] == [record.bytes for record in whole.history]
    assert resumed.summary.bytes == whole.summary.bytes
    assert torch.equal(resumed.models[0], whole.models[0])


def test_a_finished_run_that_is_resumed_counts_no_bytes_twice(tmp_path):
    first = coterie.run(spec_of("cfl"), out=tmp_path / "run", rounds=4, validation=0.2, **OPTIONS)
    again = coterie.resume(tmp_path / "run", workers=1)
    assert again.summary.bytes == first.summary.bytes
    assert first.summary.bytes.down > sum(record.bytes.down for record in first.history)  # the best model on the path
