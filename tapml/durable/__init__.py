"""What is on disk survives: files and folders that are whole or not there, transactions."""
