"""Methods of the field beside the four papers and their baselines, on Coterie's public API."""

from coterie_field.clove import CLoVE
from coterie_field.feddrift import FedDrift
from coterie_field.fedem import FedEM
from coterie_field.fedrc import FedRC
from coterie_field.fedsoft import FedSoft
from coterie_field.flhc import FLHC
from coterie_field.pacfl import PACFL

__all__ = ["FLHC", "PACFL", "CLoVE", "FedDrift", "FedEM", "FedRC", "FedSoft"]
