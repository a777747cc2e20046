"""Decides which tokens of which sequences each step computes, and in which blocks. Knows no tensors."""
