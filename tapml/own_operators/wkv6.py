"""The recurrence of RWKV6: as RWKV5's (:mod:`tapml.own_operators.wkv5`), with a decay per token."""

from tapml.own_operators.wkv import recurrence

OPERATOR = recurrence("wkv6", decay_by_token=True)
