"""Videos: opened, sampled and decoded."""
