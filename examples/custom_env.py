"""Guess a number: an environment of your own in under 30 lines."""
# ruff: noqa: D102

from random import Random


class Guess:
    """The agent names a number and reads whether it was too low or too high."""

    def __init__(self, highest: int = 20) -> None:
        self.info = {"actions": [str(n + 1) for n in range(highest)]}  # for the random player

    def reset(self, seed, task):
        self.low, self.high = 1, len(self.info["actions"])
        self.secret = Random(seed).randint(1, self.high)
        return f"a number from 1 to {self.high}", self.info

    def step(self, action):
        guess = int(action) if action.isdecimal() else 0
        if guess == self.secret:
            return "right", 1.0, True, False, self.info
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
            return "too low", 0.0, False, False, self.info
        self.high = min(self.high, guess - 1)
        return "too high", 0.0, False, False, self.info

    def suggest(self):  # optional: a good move, shown to the model before training starts
        return str((self.low + self.high) // 2)
