"""What of a policy bears on one operator: a limit that is not its own leaves its verdicts alone."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from tapml.compare.operator_class import traits_of
from tapml.compare.policy import Policy
from tapml.graph.plan import Operator

# Its limits may be those of any class. Integers and predicates have none: they match or do not.
_ANY: Final = "unclassified"


def policy_of_operator(policy: Policy, operator: Operator) -> Policy:
    """The policy without what cannot apply to an operator.

    Limits of classes that no output of it has go, and overrides whose pattern is not its name's.
    What may apply is kept: dtypes are not looked at, and an operator with an output whose class is
    not known keeps all limits. The defaults are returned as they are, at no cost.
    """
    if not policy.limits and not policy.overrides:
        return policy
    classes = {traits.operator_class for traits in traits_of(operator)}
    limits = policy.limits
    if _ANY not in classes:
        limits = tuple(row for row in limits if row[1] in classes)
    overrides = tuple(o for o in policy.overrides if fnmatchcase(operator.name, o.pattern))
    reason = policy.reason if limits else ""
    return replace(policy, limits=limits, overrides=overrides, reason=reason)
