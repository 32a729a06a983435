"""The universal runtime: one protocol that reaches a device near or far as if it were local.

Section III-E of the paper. ``tapml_rpc.supervisor`` serves a device to others
(``tapml rpc serve``). On the host, ``tapml_rpc.client`` reaches it, and ``tapml_rpc.local`` starts
the same worker for this process alone. ``PROTOCOL.md`` describes the wire.
Neither TVM nor PyTorch is imported here.
"""
