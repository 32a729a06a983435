"""The client's end of the ZeroMQ binding."""
