"""One step of two runs, op by op: the first whose output is not the same. What `diff --op` becomes."""
