"""Test carving (section III-C of the paper): runs prompts and records every call site."""
