"""Settings for the tests of the methods of the field: one thread."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
