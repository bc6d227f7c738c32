"""The shapes of one step, and what is read off them.

When a step begins and ends is decided in `loop`.
"""
