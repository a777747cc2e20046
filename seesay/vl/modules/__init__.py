"""Models without a family: the modules of Transformers."""
