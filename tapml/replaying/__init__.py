"""Replays carved tests on a device and gives verdicts (OPWISEVALIDATION of Algorithm 1)."""
