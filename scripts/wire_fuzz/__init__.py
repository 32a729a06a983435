"""The fuzzer of the wire: what it says, how it lies, and what must still hold."""
