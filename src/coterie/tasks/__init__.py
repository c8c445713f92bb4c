"""What a client can be asked to do, one task per file, each with the schema of its reply."""

from coterie.tasks.base import (
    Array,
    ClientContext,
    ClientState,
    Number,
    Reduction,
    Reply,
    ReplyBlock,
    ReplySchema,
    Request,
    Sent,
    Task,
    perform,
    reduced,
    replies_to,
    tensor_key,
    updates_of,
    with_norm,
)
from coterie.tasks.choose import Choose
from coterie.tasks.embed import Embed
from coterie.tasks.evaluate import Evaluate, outputs_by_client
from coterie.tasks.gradient import Gradient
from coterie.tasks.halves import HalfUpdates, HeldOut
from coterie.tasks.hidden_choice import CountChoice, ScoreHidden, TrainHidden
from coterie.tasks.moments import FeatureMoments, InputMoments
from coterie.tasks.noise import Noise
from coterie.tasks.personalise import Personalise
from coterie.tasks.serving import ServeBy, TryToServe
from coterie.tasks.staged import Divergence, LayerUpdate, StagedTraining
from coterie.tasks.train import Collect, Train, with_private
from coterie.tasks.words import WordSums

__all__ = [
    "Array",
    "Choose",
    "ClientContext",
    "ClientState",
    "Collect",
    "CountChoice",
    "Divergence",
    "Embed",
    "Evaluate",
    "FeatureMoments",
    "Gradient",
    "HalfUpdates",
    "HeldOut",
    "InputMoments",
    "LayerUpdate",
    "Noise",
    "Number",
    "Personalise",
    "Reduction",
    "Reply",
    "ReplyBlock",
    "ReplySchema",
    "Request",
    "ScoreHidden",
    "Sent",
    "ServeBy",
    "StagedTraining",
    "Task",
    "Train",
    "TrainHidden",
    "TryToServe",
    "WordSums",
    "outputs_by_client",
    "perform",
    "reduced",
    "replies_to",
    "tensor_key",
    "updates_of",
    "with_norm",
    "with_private",
]
