"""Comparison of two replays or sessions: the gate for an upgrade of a driver or TVM."""
