"""What each training option costs: processor seconds of a round's local training, relative to plain SGD.

    python -m coterie_bench.training_costs docs/results/training-costs.json

Twenty clients of the digits train once over their data in batches of 32, an MLP by the batched trainer and a small CNN
by the loop. Options take turns, and the median of the repetitions counts. Seconds are the process's own, so that what
else runs on the machine counts little.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from coterie.data import find_scenario
from coterie.models import build
from coterie.trainers import Trainer, Training, TrainingJob, default_loss, make_trainer

PLAIN = Training(lr=0.05, epochs=1, batch_size=32)
ADAM = replace(PLAIN, lr=0.001, optimizer="adam")
OPTIONS: dict[str, Training] = {
    "sgd": PLAIN,
    "momentum": replace(PLAIN, momentum=0.9),
    "adam": ADAM,
    "adamw": replace(ADAM, optimizer="adamw", weight_decay=0.01),
    "clip_gradient": replace(PLAIN, clip_gradient=1.0),
    "class_weights": replace(PLAIN, class_weights="balanced"),
    "augment=flip": replace(PLAIN, augment="flip"),
    "augment=flip,crop:1": replace(PLAIN, augment="flip,crop:1"),
}
MODELS = ("mlp", "cnn-small")
CLIENTS, REPEAT, WARM_UP = 20, 7, 2


def trainer_and_jobs(model: str) -> tuple[Trainer, list[TrainingJob]]:
    """The trainer for the model on the digits, and every client's job."""
    federation = find_scenario("digits-iid").build(clients=CLIENTS, seed=0)
    module = build(model, federation.input_shape, federation.classes, 0)
    trainer = make_trainer(module, default_loss(False), federation.clients[0].train, "float32", 2**28)
    start = trainer.layout.read(module)
    return trainer, [TrainingJob(client.train, start, i) for i, client in enumerate(federation)]


def seconds_per_round(model: str, repeat: int = REPEAT) -> dict[str, float]:
    """The median processor seconds of a round's training under each option."""
    trainer, jobs = trainer_and_jobs(model)
    seconds: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for number in range(repeat + WARM_UP):
        for name, training in OPTIONS.items():
            began = time.process_time()
            trainer.train(jobs, training)
            if number >= WARM_UP:
                seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure(repeat: int = REPEAT) -> dict[str, dict[str, dict[str, float]]]:
    """For every model and option, the seconds of a round and how many times those of plain SGD they are."""
    found = {}
    for model in MODELS:
        seconds = seconds_per_round(model, repeat)
        found[model] = {
            name: {"seconds": round(value, 5), "relative": round(value / seconds["sgd"], 2)}
            for name, value in seconds.items()
        }
    return found


def main(path: str) -> None:
    """Measure, write the numbers to `path`, and print them as a table."""
    torch.set_num_threads(1)
    found = measure()
    about = {"clients": CLIENTS, "repetitions": REPEAT, "torch": torch.__version__}
    Path(path).write_text(json.dumps({"about": about, "costs": found}, indent=2) + "\n", encoding="utf-8")
    print("| option | " + " | ".join(MODELS) + " |\n|---|" + "---|" * len(MODELS))
    for name in OPTIONS:
        print(f"| `{name}` | " + " | ".join(f"{found[model][name]['relative']:.2f}" for model in MODELS) + " |")


if __name__ == "__main__":
    main(sys.argv[1])
