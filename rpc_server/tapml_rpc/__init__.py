"""The universal runtime: one protocol that reaches a device near or far as if it were local.

Section III-E of the paper. ``tapml_rpc.supervisor`` serves a device to others
(``tapml rpc serve``), ``tapml_rpc.server`` serves one to the process that started it. On the host,
``tapml_rpc.client`` reaches the first and ``tapml_rpc.local`` starts the second. ``PROTOCOL.md``
describes the wire.
Neither TVM nor PyTorch is imported here.
"""
