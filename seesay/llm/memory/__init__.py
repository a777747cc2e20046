"""The layout and the memory of keys and values."""
