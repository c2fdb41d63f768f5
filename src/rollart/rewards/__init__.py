"""Reward functions, which score trajectories; `invoke/` decides where they run."""
