"""Prepares requests and turns their tokens into answers."""
