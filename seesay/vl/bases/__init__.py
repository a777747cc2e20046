"""What families of one kind share."""
