"""The recurrence of RWKV5: a matrix of state for each head that decays by channel.

With receptance r, key k and value v of a token, decay w and bonus u of a head, and state s
``[head size, head size]``, key first (Peng et al., "Eagle and Finch", equations 12 to 14)::

    y[j]     = sum over i of r[i] * (u[i] * k[i] * v[j] + s[i, j])
    s'[i, j] = w[i] * s[i, j] + k[i] * v[j]
"""

from tapml.own_operators.wkv import recurrence

OPERATOR = recurrence("wkv5", decay_by_token=False)
