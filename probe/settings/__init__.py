"""Options of a session and default places, as data that checks itself.

Nothing here measures or acts; what an option does stands in the package that does it.
"""
