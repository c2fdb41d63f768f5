"""Reward functions: what scores a trajectory, and under `serverless/` where it runs."""
