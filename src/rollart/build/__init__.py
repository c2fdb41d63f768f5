"""Puts a run together: the one place that knows every adapter."""
