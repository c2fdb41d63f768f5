"""What a person sees of a run: log, metrics, plots, progress."""
