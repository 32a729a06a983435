"""The ends of a relay: addresses that lead through one, tunnels, a way for libzmq."""
