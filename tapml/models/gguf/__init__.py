"""GGUF files: read with bounds, and converted to a folder in tapml's own layout."""
