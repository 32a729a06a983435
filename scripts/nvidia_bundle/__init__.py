"""What is carried to a machine with an NVIDIA GPU and runs there, without a network.

`run.py`, `rows.py`, `machine.py` and `unpacking.py` need the standard library alone; the others are
parts, each run in a process of its own.
"""
