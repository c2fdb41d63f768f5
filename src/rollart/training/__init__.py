"""Advantages, losses, packing, the trainer and its checkpoints."""
