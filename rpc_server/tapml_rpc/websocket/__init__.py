"""The WebSocket binding: the same messages for browsers, and for boards without ZeroMQ."""
