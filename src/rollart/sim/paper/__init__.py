"""The paper's experiments, simulated: set-ups, rows of its tables, and how they compare."""
