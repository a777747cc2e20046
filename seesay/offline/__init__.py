"""The offline API: `pipeline`, its conversations, and older keyword arguments. Knows nothing about HTTP."""
