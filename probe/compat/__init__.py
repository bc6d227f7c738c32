"""Every private symbol of torch that we use, what torch.distributed says, and copies to the host.

No number is computed here and nothing is decided. Each symbol has a fallback; all other packages ask here.
"""
