"""Published layouts of model folders, read as those of Transformers."""
