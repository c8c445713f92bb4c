"""What users write, as mypy --strict sees it: `make lint` checks this file, where a needless ignore is an error."""

from __future__ import annotations

from torch import Tensor

import coterie


class Watch(coterie.Callback):
    """Overrides one hook of four."""

    def on_round(self, record: coterie.RoundRecord) -> None:
        if record.accuracy.mean == 1.0:
            raise coterie.StopRun("perfect")


def margin(outputs: Tensor, labels: Tensor) -> float:
    return float(outputs.max())


def use(federation: coterie.Federation) -> coterie.Result:
    coterie.run("fedavg", federation, seed="five")  # type: ignore[arg-type]
    coterie.run("fedavg", federation, training=coterie.TrainingOptions(lrr=0.1))  # type: ignore[call-arg]
    coterie.run("fedavg", federation, limits=coterie.LimitOptions(rounds="five"))  # type: ignore[arg-type]
    coterie.run("fedavg", federation, limits=coterie.TrainingOptions())  # type: ignore[arg-type]
    coterie.run(data=coterie.DataOptions("sites/*.csv", label="outcome", drop=["id"]), engine="ray")
    coterie.compare(["fedavg", "cfl"], federation, training=coterie.TrainingOptions(lr=0.1), workers=2)
    coterie.resume("runs/own", engine=5)  # type: ignore[arg-type]
    coterie.sweep({"lr": [0.1, 1.0]}, federation, trials="five")  # type: ignore[arg-type]
    coterie.run("fedavg", federation, metrics=["auc", margin], callbacks=[Watch()])
    coterie.run("fedavg", federation, metrics="auc,f1", patience=3, max_bytes="5MB")
    return coterie.run("fedavg", federation, metrics={"margin": margin}, progress=False)
