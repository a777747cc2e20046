"""The engine in a process of its own: a link of messages, the child that computes, and the core that asks it."""
