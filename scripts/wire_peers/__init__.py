"""What the wire is measured against: other ways to bring bytes to another process's memory.

Each peer has a server, run as ``python -m scripts.wire_peers.<name>``, which prints its port, and a
client with ``upload`` and ``download``. Both ends copy payloads into memory of their own, as a
device does. A request is one byte and a length: ``u`` brings bytes and is answered when all of them
lie in memory, ``d`` asks for as many.
"""
