"""Where a thread stands and whether it moves: stacks, call sites, the watchdog and what is said of a hang.

No torch hook and no file of the spool is here; who writes the sign of life is `delivery`.
"""
