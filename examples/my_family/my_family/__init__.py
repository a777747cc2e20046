"""A model family for seesay that is not part of seesay: copy it, and change it into yours."""
