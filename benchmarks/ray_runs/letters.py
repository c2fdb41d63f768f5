"""A world in which any model is rewarded unequally: it counts letters of what was said."""

from typing import Any


class Letters:
    """Two or three turns, each rewarded by the letters said."""

    system_prompt = "Say something"

    def __init__(self) -> None:
        self._left = 0

    def reset(self, seed: int, task: Any) -> tuple[str, dict[str, Any]]:
        """Begin."""
        del task
        self._left = 2 + seed % 2
        return f"say {seed % 10}", {"actions": ["a", "b"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Reward what was said."""
        self._left -= 1
        reward = sum(ord(letter) % 3 for letter in action) % 5 / 4
        return "more", reward, self._left == 0, False, {"success": reward > 0.5}

    def suggest(self) -> str:
        """Return something to say."""
        return "b"
