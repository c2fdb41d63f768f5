"""Checkpoints of a run: saved, validated, resumed."""
