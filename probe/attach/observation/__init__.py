"""What the higher levels measure inside the model: outputs, their gradients, time and memory of each module.

`observer.ModuleObserver` is the whole interface towards the step tracker. Nothing is put on a model: while a
sampled forward runs, `nn.Module.__call__` is replaced on the class, and only then.
"""
