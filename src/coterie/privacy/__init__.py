"""What keeps a client's update from telling more than it must."""

from coterie.privacy import projection as projection  # so that a client knows the task Compare
from coterie.privacy import secure_tasks as secure_tasks  # and those of secure sums
from coterie.privacy.accounting import noise_for
from coterie.privacy.masks import Mask, MaskedTrainer, masked_layout

__all__ = ["Mask", "MaskedTrainer", "masked_layout", "noise_for"]
