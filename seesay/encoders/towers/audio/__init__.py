"""The towers of audio."""
