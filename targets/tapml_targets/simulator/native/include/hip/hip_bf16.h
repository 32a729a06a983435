// What it holds, the simulator gives to every text.
