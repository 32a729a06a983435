"""The device side for other processes: one supervisor, and one worker process per session."""
