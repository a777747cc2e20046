"""Text: tokenize, and detokenize as an answer grows. Does not import torch."""
