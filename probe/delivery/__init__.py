"""The way out of the training process: journal, recorder's thread, helper, and requests from outside.

No torch here; what is worth recording is decided above.
"""
