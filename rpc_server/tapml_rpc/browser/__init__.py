"""The device's side of a session: what runs in a worker."""
