"""A migration session on disk: settings, journal, lock, and what it keeps of its model."""
