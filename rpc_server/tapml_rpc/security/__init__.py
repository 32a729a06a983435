"""Who may reach a device, and how both ends verify each other; ``SECURITY.md`` says why."""
