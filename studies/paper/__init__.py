"""The paper's results beside the simulator's."""
