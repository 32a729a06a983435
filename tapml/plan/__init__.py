"""The compute graph as data: entries, steps, operators and values, with their stored form."""
