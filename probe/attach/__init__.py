"""All that is put on torch and on the process, and what takes it off again.

What a step is and what its numbers mean is decided above, in `step` and `loop`.
"""
