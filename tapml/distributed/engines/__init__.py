"""Engines: ways to distribute a model, one folder each, found by its name.

A folder has ``settings.py``, which imports nothing heavy, and ``ranks.py``, which runs in the
ranks; :mod:`tapml.distributed.engine` says what is in them. A package elsewhere adds an engine by
an entry point in the group ``tapml.engines``.
"""
