"""Shared parts of the platforms' ``codegen.py``: from a PrimFunc to kernels and a launch plan.

Only this package and the ``codegen.py`` modules import TVM, and only :mod:`tapml.compiler` imports
them: a device that runs a Library needs neither.
"""
