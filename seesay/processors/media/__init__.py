"""Media: fetch and decode pictures and videos safely. Does not import torch."""
