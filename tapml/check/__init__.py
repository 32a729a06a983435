"""Replays carved tests on a simulator that sees every access to memory (``tapml replay --check``).

:mod:`tapml.check.checker` opens it, :mod:`tapml.check.operator_check` replays one operator's tests
on it, :mod:`tapml.check.checked_replay` a whole suite or a repro folder.
"""
