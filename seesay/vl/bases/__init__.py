"""Base classes of families of one kind."""
