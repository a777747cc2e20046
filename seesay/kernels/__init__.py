"""All Triton kernels. Imported only on CUDA and in Triton's interpreter."""
