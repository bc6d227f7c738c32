"""The statistics of many tensors at once: by the native kernel, by torch, or a mix of both."""
