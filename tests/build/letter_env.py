"""An environment any model gets different rewards in: it counts letters of what was said."""

import os
import signal
import threading


class Letters:
    """Rewards even letters; ends after `turns`."""

    system_prompt = "Say something"
    lock = threading.Lock()
    resets = 0

    def __init__(self, *, turns: int = 2, interrupt_at: int = 0) -> None:
        self._turns = turns
        self._interrupt_at = interrupt_at
        self._left = turns

    def reset(self, seed, task):
        self._left = self._turns
        if self._interrupt_at:
            with Letters.lock:
                Letters.resets += 1
                if Letters.resets == self._interrupt_at:
                    os.kill(os.getpid(), signal.SIGINT)
        return f"say {seed % 10}", {"actions": ["a", "b"]}

    def step(self, action):
        self._left -= 1
        reward = sum(ord(letter) % 3 for letter in action) % 5 / 4
        done = self._left == 0
        return "more", reward, done, False, {"success": reward > 0.5}

    def suggest(self):
        return "b"
