"""The suite format: carved tests in a folder with an index and content-addressed packs."""
