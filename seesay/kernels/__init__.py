"""Triton kernels that the decoder and the vision towers share. Imported on CUDA only, and in Triton's interpreter."""
