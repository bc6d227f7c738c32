"""Conditions and functions of the user's own, judged at every step: watchpoints, rules and what they do."""
