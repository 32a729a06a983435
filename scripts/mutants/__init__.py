"""Wrong kernels made by rule from compiled ones, and how many of them tapml finds."""
