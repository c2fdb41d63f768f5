"""Environments, adapters of the Env port."""
