"""Modes that make a training faster or smaller, applied to a model or a loop, and measured against none.

Nothing here knows a session; `calls/optimisations.py` keeps results with the run.
"""
