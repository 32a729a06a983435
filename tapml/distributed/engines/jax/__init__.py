"""Meshes of JAX."""
