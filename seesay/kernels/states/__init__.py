"""What layers with states compute: convolutions, delta rule, state spaces, gates, faults."""
