"""Crash-safe storage: atomic files and folders, and SQLite transactions."""
