"""RollArt: train LLM agents with reinforcement learning on disaggregated infrastructure.

Importing the package loads neither torch nor ray; each module imports what it is about.
"""

__version__ = "0.1.0"
