"""What computes: the plain loop, many clients in one product, sample space, low rank."""

from coterie.trainers.base import Reduction, Trained, Trainer, Training, TrainingJob
from coterie.trainers.batched import BatchedTrainer
from coterie.trainers.choice import make_trainer
from coterie.trainers.devices import bfloat16_support
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import Loss, default_loss, predicted_labels
from coterie.trainers.schedules import LearningRateSchedule
from coterie.trainers.threads import one_thread, one_torch_thread

__all__ = [
    "BatchedTrainer",
    "LearningRateSchedule",
    "LoopTrainer",
    "Loss",
    "Reduction",
    "Trained",
    "Trainer",
    "Training",
    "TrainingJob",
    "bfloat16_support",
    "default_loss",
    "make_trainer",
    "one_thread",
    "one_torch_thread",
    "predicted_labels",
]
