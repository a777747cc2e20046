"""The loop that plans steps, runs them and commits their tokens."""
