"""Devices by name, kind or feature: a tracker, its leases and queue, a relay for hidden devices."""
