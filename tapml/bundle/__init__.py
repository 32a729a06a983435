"""Bundles: one archive with a failing operator, which the base install can replay."""
