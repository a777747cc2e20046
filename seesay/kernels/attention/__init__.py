"""Attention over the blocks of the cache: plain, quantized, latent, and with the same bits always."""
