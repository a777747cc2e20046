"""State that outlives a request: sessions and responses."""
