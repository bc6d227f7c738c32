"""The spool's files: segments that are only appended to, and their readers."""
