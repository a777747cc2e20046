"""The request distributor: one address for several servers, the nodes."""
