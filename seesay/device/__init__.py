"""All that depends on the device: what it is and has, streams, transfers, linear layers, pacing of the vision tower.

Only `cuda.py`, here, and the kernels use `torch.cuda`.
"""
