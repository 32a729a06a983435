"""One archive that holds a failing operator whole, and is replayed with the base install."""
