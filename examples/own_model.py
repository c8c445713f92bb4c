"""A model of your own on data of your own: one .npz file per client, made here from scikit-learn's digits."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

import coterie

with tempfile.TemporaryDirectory() as folder:
    digits = load_digits()
    for i in range(10):
        np.savez(Path(folder) / f"school-{i}.npz", x=digits.images[i::10] / 16, y=digits.target[i::10])
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    result = coterie.run("fedavg", coterie.Federation.from_folder(folder), model=net, rounds=20, seed=1)
    print(f"mean accuracy {result.summary.accuracy.mean:.3f} over {len(result.clients)} clients")
