"""The engine: requests are prepared, planned, computed and answered. Makes text of tokens; knows nothing about HTTP."""
