"""Three SuperNodes that read a CSV file each reach the model of the simulation that reads all of them."""

from __future__ import annotations

from pathlib import Path

from trials import Trial, models

import coterie
from coterie.flower.deploy import write_deployment
from coterie.flower.local import Network
from coterie.runs.config import make_config
from coterie.runs.folder import RunFolder
from tables import write_hospitals

OPTIONS = {"label": "y", "method": "fedavg", "model": "logistic", "rounds": 2, "lr": 0.5, "seed": 1}
HOSPITALS = 3


def test_raw_tables_at_the_nodes_give_the_model_of_the_simulation(tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    write_hospitals(sites, share=0.2)
    for file in sorted(sites.iterdir())[HOSPITALS:]:
        file.unlink()
    simulated = coterie.run(data=str(sites), **OPTIONS, workers=1, out=tmp_path / "simulated")
    deployment = write_deployment(tmp_path / "app", make_config({"data": str(sites), **OPTIONS}))
    assert [Path(node["data"]).suffix for node in deployment.nodes] == [".csv"] * HOSPITALS
    with Network(tmp_path / "flower") as network:
        for number, node in enumerate(deployment.nodes):
            network.add_node(f"node-{number}", node)
        trial = Trial(network, tmp_path, HOSPITALS)
        trial.finish(network.submit(deployment.app, {"poll": 0.1}), deployment)
    [here], [there] = models(tmp_path / "simulated"), models(deployment.run)
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        assert float((tensor - there[name]).abs().max()) <= 1e-6, name
    agreed = RunFolder(deployment.run).read_json("table.json")
    assert simulated.table is not None
    assert [column["name"] for column in agreed["columns"]] == [column.name for column in simulated.table.columns]
