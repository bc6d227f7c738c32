"""What a training loop is: which calls make a step, what is measured when, and its way to the verdict.

What an event says and what a number is stands below; what attaches all of it is `session`.
"""
