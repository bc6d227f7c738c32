"""What the user asked for: rules, recovery, and calls that only look.

Nothing here runs unless it was asked for.
"""
