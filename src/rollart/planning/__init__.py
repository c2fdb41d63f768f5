"""The planner: which GPUs train, which roll out, and for which tasks, found by simulation."""
