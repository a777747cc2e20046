"""Who may ask, and how much: keys, queues, metrics."""
