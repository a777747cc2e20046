"""The parts of `train_demo.py`, which trains the built-in checkpoint."""
