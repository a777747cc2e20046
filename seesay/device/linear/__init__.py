"""Linear layers, plain and quantized."""
