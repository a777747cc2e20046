"""The only package that uses `torch.cuda`: device queries, streams, linear layers, pacing of the vision tower."""
