"""Test carving: records what call sites read and write into a suite on disk, and replays it."""
