"""Models whose code lies beside their weights: the files of tiny checkpoints, run with `trust_remote_code`."""
