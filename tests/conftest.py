"""Settings for every test: one thread, reproducible hypothesis runs, no data folder of the machine."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("coterie", deadline=None, max_examples=50, derandomize=True, database=None)
hypothesis.settings.load_profile("coterie")
