"""Hostile clients in simulations: attacks on aggregation and clustering, and what they cost the honest clients."""

from coterie_attacks.attacks import ATTACKS, Attack, choose_hostile
from coterie_attacks.engine import HostileEngine
from coterie_attacks.frontier import AttackResult, attack_table, attacked_run

__all__ = ["ATTACKS", "Attack", "AttackResult", "HostileEngine", "attack_table", "attacked_run", "choose_hostile"]
