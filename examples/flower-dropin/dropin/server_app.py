"""The user's ServerApp: where the strategy was FedAvg, it is CFL now."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from coterie.flower import CFL  # was: from flwr.serverapp.strategy import FedAvg
from dropin.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = CFL(fraction_evaluate=config["fraction-evaluate"])  # was: FedAvg(fraction_evaluate=…)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    out = Path(config["out"])
    strategy.save(out)  # new: cluster-<id>.pt for every cluster, and clusters.json
    torch.save(result.arrays.to_torch_state_dict(), out / "final_model.pt")  # the largest cluster's alone
    for members in strategy.clusters:
        print(f"{len(members)} nodes share a model: {members}")
    print(f"models: {out.resolve()}")
