"""Error metrics, oracles, policies and verdicts: is a target's result right, and why in numbers."""
