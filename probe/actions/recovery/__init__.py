"""What may be done about a bad step, a lack of memory, or in- and outputs that are not as they should be.

Off unless asked for; every action is an event (kind `recovery`). `options.py` and `policies.py` are what the
user writes, `step_recovery.py` acts before an optimizer's update, `enforcement.py` round a forward,
`robust_step.py` and `safe_inference.py` are calls of their own. All on the training thread.
"""
