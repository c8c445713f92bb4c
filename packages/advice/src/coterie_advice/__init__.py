"""Advice before a run and explanation after it: which method to run, and why a run's clusters differ."""

from coterie_advice.advising import Advice, advise
from coterie_advice.diagnosis import Diagnosis, diagnose
from coterie_advice.explaining import Explanation, explain

__all__ = ["Advice", "Diagnosis", "Explanation", "advise", "diagnose", "explain"]
