"""The device end for other people's processes: one supervisor, and a worker process a session."""
