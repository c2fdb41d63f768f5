"""Observation of a run: event log, metrics, plots, samples, progress display."""
