"""tapml_targets: what a platform is. Data types, limits, targets, Libraries and how they run."""
