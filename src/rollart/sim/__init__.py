"""The simulator: the live scheduler driven by simulated events, costs from first principles."""
