"""One model computed by several processes, its ranks: rank 0 is the engine process, the others follow it."""
