"""Which of several servers gets a request."""
