"""Snapshots of a run as one file: HTML that opens with no network, and JSON."""
