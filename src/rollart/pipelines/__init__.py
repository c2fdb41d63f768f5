"""Whole runs, from a config to a summary."""
