"""Replays carved tests on a simulator that checks every memory access (``tapml replay --check``).

:mod:`tapml.check.checker` starts it, :mod:`tapml.check.operator_check` replays one operator's tests
on it, :mod:`tapml.check.checked_replay` a complete suite or a repro folder.
"""
