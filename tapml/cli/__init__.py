"""The ``tapml`` command."""
