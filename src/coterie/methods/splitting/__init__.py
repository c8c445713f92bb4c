"""When to split a cluster: the contract of a rule, and the rules there are, by name."""

from __future__ import annotations

from typing import Any

from coterie.errors import ConfigError, did_you_mean
from coterie.methods.options import parse_call
from coterie.methods.splitting.base import (
    RULES,
    LeafRound,
    Look,
    SplitDecision,
    SplitRule,
    Watched,
    load_offered,
    split_rule,
)
from coterie.methods.splitting.benefit import BenefitRule, some_of
from coterie.methods.splitting.evaluated import EvaluatedRule
from coterie.methods.splitting.growing import grow
from coterie.methods.splitting.paper import PaperRule, branches_of

__all__ = [
    "RULES",
    "BenefitRule",
    "EvaluatedRule",
    "LeafRound",
    "Look",
    "PaperRule",
    "SplitDecision",
    "SplitRule",
    "Watched",
    "branches_of",
    "grow",
    "make_rule",
    "some_of",
    "split_rule",
]


def make_rule(spec: Any) -> SplitRule:
    """The rule written as `name` or `name(key=value,…)`, or the rule itself.

    Example:
        >>> make_rule("paper(eps1=0.4,eps2=1.6)").eps1
        0.4
    """
    if not isinstance(spec, str):
        if not hasattr(spec, "consider"):
            raise ConfigError(f"rule={spec!r}: expected the name of a rule, or an object with the methods of SplitRule")
        rule: SplitRule = spec
        return rule
    name, options = parse_call(spec, f"rule={spec!r}")
    load_offered(name)
    if name not in RULES:
        raise ConfigError(f"rule={spec!r}: {did_you_mean(name, RULES)}")
    return RULES[name](**options)
