"""Environments: the shipped ones, and how one is found by name."""
