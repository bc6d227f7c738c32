"""Detectors: one family of failures per file. Numbers in, findings out; numpy only."""
