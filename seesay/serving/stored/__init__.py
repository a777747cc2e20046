"""What is kept for longer than a request: sessions and responses."""
