"""The only place that asks `torch.cuda` anything: device queries, streams, linear layers, the pace of the tower."""
