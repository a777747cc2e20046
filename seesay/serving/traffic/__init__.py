"""Admission: keys, queues, limits; and metrics."""
