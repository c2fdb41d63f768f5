"""Figures of GPUs, links and models, as the simulator and planner use them."""
