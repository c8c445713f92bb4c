"""What keeps a client's update from revealing more than it must."""

from coterie.privacy import projection as projection  # so that a client knows the tasks of projections
from coterie.privacy import secure_tasks as secure_tasks  # and those of secure sums
from coterie.privacy.accounting import noise_for
from coterie.privacy.keys import make_key, new_key
from coterie.privacy.masks import Mask, MaskedTrainer, masked_layout
from coterie.privacy.projection import project

__all__ = ["Mask", "MaskedTrainer", "make_key", "masked_layout", "new_key", "noise_for", "project"]
