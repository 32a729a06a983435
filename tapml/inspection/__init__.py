"""Descriptions of files and folders that tapml wrote, as text and as data."""
