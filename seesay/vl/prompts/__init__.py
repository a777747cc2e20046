"""Conversations to token ids with the places of their media."""
