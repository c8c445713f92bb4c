"""Hostile clients in simulations: attacks on aggregation, and what they cost the honest clients."""

from coterie_attacks.attacks import ATTACKS, Attack, AttackResult, HostileEngine, attack_table, attacked_run

__all__ = ["ATTACKS", "Attack", "AttackResult", "HostileEngine", "attack_table", "attacked_run"]
