"""Two replays or two sessions held against each other: the gate of a driver or TVM upgrade."""
