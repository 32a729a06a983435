"""What is known about a failure, as data: its places in the tensor, its diagnosis, a build log."""
