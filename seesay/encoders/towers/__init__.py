"""Vision towers and their layers."""
