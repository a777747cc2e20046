"""Products of few rows with plain matrices, fused with what comes before and behind."""
