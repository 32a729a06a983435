"""ZMTP 3, the wire format of ZeroMQ, on plain sockets: payloads are received in place."""
