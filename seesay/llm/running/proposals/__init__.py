"""Proposes tokens of rows, and verifies several at a time, on the device."""
