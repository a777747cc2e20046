"""Batches in OpenAI's format: a file of requests, one a line, and a file of results."""
