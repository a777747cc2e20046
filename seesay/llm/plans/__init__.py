"""Values that the scheduler and a runner exchange."""
