"""Threads, logs, child processes, a user's folders and content hashes."""
