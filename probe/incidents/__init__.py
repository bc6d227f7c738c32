"""What an event says: of a fault that the detectors found, of an exception, and who is told.

Thresholds are the detectors', origins are the forensics'.
"""
