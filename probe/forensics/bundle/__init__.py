"""The bundle: a folder of JSON and safetensors that reproduces one step of a run, on any machine.

`writer.py` writes one at the moment of a fault, in the training process;
`python -m probe.forensics.bundle` replays it in another. Nothing here runs at an ordinary step.
"""
