"""A grammar that makes thousands of wordings of every question; a sixth of its forms never appears in training."""
