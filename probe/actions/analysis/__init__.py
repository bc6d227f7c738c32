"""Calls that a person makes to look at a tensor, a model or one step; not part of the live path.

Every function here is also at `probe.<name>` and, for the watched model, a method of the session.
"""
