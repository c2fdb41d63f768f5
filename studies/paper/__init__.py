"""The results of the paper, compared with the simulator's."""
