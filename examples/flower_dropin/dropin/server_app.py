"""The user's ServerApp: where the strategy was FedAvg, it is CFL now."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from coterie.flower import CFL  # was: from flwr.serverapp.strategy import FedAvg
from dropin.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = CFL(fraction_evaluate=0.5)  # was: FedAvg(fraction_evaluate=0.5)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    for members, model in zip(strategy.clusters, strategy.models, strict=True):
        print(f"{len(members)} nodes share a model of {sum(a.numpy().size for a in model.values())} numbers: {members}")
