"""What lies in a folder or a file that tapml wrote, for people and as data."""
