"""Settings for the board's tests: one thread."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
