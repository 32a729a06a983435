"""Seeded mistakes of distributed training, and the job that has them."""
