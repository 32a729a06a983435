"""The device that a text names: here, at an address, lent by a tracker, a browser; and its tests.

It is reached over :mod:`tapml_rpc`, which knows sessions and none of these names.
"""
