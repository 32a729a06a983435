"""Run folders: long work that can be watched, killed and resumed, whatever the work is."""
