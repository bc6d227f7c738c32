"""Tensors in, numbers out: the kernels, the statistics of gradients, updates and optimizer state.

Nothing here knows of steps, events or files.
"""
