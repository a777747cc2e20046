"""Grammars that an answer must follow: what they may contain, how they are compiled, and which tokens they allow next.

Imports llguidance when the first grammar is asked for.
"""
