"""Products with packed matrices: AWQ, GPTQ, and the numbers of them unpacked."""
