"""Figures of GPUs, links and models that the simulator and the planner use."""
