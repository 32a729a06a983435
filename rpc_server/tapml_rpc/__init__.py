"""tapml_rpc: reach a device through a server process: protocol, server, client."""
