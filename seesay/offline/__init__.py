"""The offline API: `pipeline`, its conversations, and deprecated keyword arguments. Does not depend on HTTP."""
