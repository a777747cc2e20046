"""Which blocks and slots are free, used or cached. Knows numbers, neither memory nor sequences."""
