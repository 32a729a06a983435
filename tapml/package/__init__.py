"""What ships: a moved model as one folder or archive that the base install runs."""
