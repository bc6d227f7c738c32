"""What a replay changes besides tensors: put back where it can be, refused before it happens where not."""
