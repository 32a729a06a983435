"""ZMTP 3, the wire format of ZeroMQ, on plain sockets: payloads go where they belong at once."""
