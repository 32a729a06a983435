"""Measures a device: limits, loops, rounding, denormals, edges of functions.

``facts`` defines an answer, ``kernels`` the kernels, ``measure`` runs them on a driver or over a
session, and ``known`` runs them in a child process and caches the answer.
"""
