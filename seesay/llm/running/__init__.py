"""Runs planned steps on a device. Knows rows, and no requests."""
