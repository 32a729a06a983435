"""Packed weights: codes of few bits in 32-bit words, with scales and zeros per group."""
