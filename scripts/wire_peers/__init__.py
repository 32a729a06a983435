"""Peers of the wire benchmarks: other ways to copy bytes to another process's memory.

Each peer has a server, run as ``python -m scripts.wire_peers.<name>``, which prints its port, and a
client with ``upload`` and ``download``. Both ends copy payloads into their own memory, like a
device. A request is one byte and a length: ``u`` sends bytes and is answered when all are in
memory, ``d`` requests bytes.
"""
