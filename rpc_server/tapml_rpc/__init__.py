"""The universal runtime: one protocol that reaches a device near or far as if it were local.

Section III-E of the paper. ``tapml_rpc.server`` runs beside the device, ``tapml_rpc.client`` and
``tapml_rpc.local`` on the host; ``PROTOCOL.md`` beside this package is the wire. Neither TVM nor
PyTorch is imported here.
"""
