"""Generated models under an engine's settings, and what their findings have in common."""
