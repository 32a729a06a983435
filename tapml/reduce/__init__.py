"""A failing test made smaller while it keeps failing."""
