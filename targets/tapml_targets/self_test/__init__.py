"""Asks a device what it really does: limits, loops, rounding, denormals, edges of functions.

``facts`` says what an answer is, ``kernels`` what is run, ``measure`` runs it, near or far, and
``known`` runs it in a process of its own and remembers the answer.
"""
