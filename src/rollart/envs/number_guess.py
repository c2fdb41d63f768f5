"""NumberGuess: find a number between 1 and N; each wrong guess is answered "higher" or "lower".

The reward is 1 for the number, 0 when the guesses are used up. A text that is not a number in range
uses up a guess and returns a message; it never raises.
"""

from collections.abc import Mapping
from random import Random

from rollart.envs.registry import UNDIVIDED
from rollart.errors import ConfigError
from rollart.types import Json

_LARGEST = 1000


class NumberGuess:
    """A number to find by guessing; the reward is 1 for finding it."""

    system_prompt = "Guess the number"
    inline = True

    def __init__(self, *, largest: int = 10, guesses: int = 4) -> None:
        if not 2 <= largest <= _LARGEST:
            raise ConfigError("env.options.largest", largest, f"must be from 2 to {_LARGEST}")
        if guesses < 1:
            raise ConfigError("env.options.guesses", guesses, "must be at least 1")
        self._largest = largest
        self._guesses = guesses
        self._left = guesses
        self._secret = 1
        self._range = (1, largest)

    def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Draw the number from the seed."""
        self._secret = Random(seed).randint(1, self._largest)
        self._left = self._guesses
        self._range = (1, self._largest)
        # Every number is trained on: there are too few to keep some for evaluation.
        posed: dict[str, Json] = {"problem": str(self._secret), "split": UNDIVIDED}
        return f"1 to {self._largest}", self._info(success=False) | posed

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Compare a guess with the number."""
        self._left -= 1
        text = action.strip()
        guess = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if guess == self._secret:
            return "right", 1.0, True, False, self._info(success=True)
        if not 1 <= guess <= self._largest:
            observation = f"illegal, 1 to {self._largest}"
        elif guess < self._secret:
            observation = "higher"
            self._range = (max(self._range[0], guess + 1), self._range[1])
        else:
            observation = "lower"
            self._range = (self._range[0], min(self._range[1], guess - 1))
        return observation, 0.0, self._left <= 0, False, self._info(success=False)

    def suggest(self) -> str:
        """Return the middle of the remaining range."""
        return str(sum(self._range) // 2)

    def _info(self, *, success: bool) -> dict[str, Json]:
        actions: list[Json] = [str(number) for number in range(1, self._largest + 1)]
        return {"actions": actions, "success": success}
