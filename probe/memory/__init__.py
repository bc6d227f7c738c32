"""Leaks, lack of memory, and who holds what.

The judgement of growth is a detector; here are the readings and the looks at live objects.
"""
