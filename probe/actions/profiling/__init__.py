"""Profiles: a block or some steps under torch.profiler, made into tables and plain words.

Recorded on the training thread; `step_profiler.py` does it for steps, `profiled_block.py` for a block.
"""
