"""Bodies, streams and connections."""
