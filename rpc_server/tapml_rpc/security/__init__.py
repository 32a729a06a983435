"""Who may reach a device, and how both ends know whom they talk to; ``SECURITY.md`` says why."""
