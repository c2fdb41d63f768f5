"""Puts a run together: the one place that knows every adapter."""

from rollart.build.evaluating import evaluate
from rollart.build.training import train

__all__ = ["evaluate", "train"]
