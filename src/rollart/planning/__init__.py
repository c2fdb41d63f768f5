"""The planner: finds by simulation which GPUs train, which roll out, and for which tasks."""
