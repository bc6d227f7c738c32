"""Every private symbol of torch that we use, torch.distributed, copies to the host, Python's collector.

No number is computed here and nothing is decided. Each symbol has a fallback; all other packages ask here.
"""
