"""Media of requests to features, cached by content."""
