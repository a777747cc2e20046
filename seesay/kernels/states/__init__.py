"""Kernels of layers with states: convolutions, delta rule, state spaces, gates, faults."""
