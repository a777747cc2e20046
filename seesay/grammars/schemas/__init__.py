"""Schemas in JSON Schema, rewritten for the compiler, which lacks some of its keywords."""
