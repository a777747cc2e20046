"""A device that computes on the CPU, and whose memory no other code can read."""
