"""Read a model's answers back: thoughts, calls of functions, and text (`answer_parser.py` says how this is used)."""
