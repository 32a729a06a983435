"""What a session shows when it is over: JSON for programs, one HTML page for people."""
