"""An environment any model gets different rewards in: it counts letters of what was said."""

import os
import random
import signal
import threading
import time


class Letters:
    """Rewards letters; two or three turns; may interrupt the run at a reset, as Ctrl-C does."""

    system_prompt = "Say something"
    lock = threading.Lock()
    resets = 0
    interrupt_at = 0
    interrupt_by = signal.SIGINT
    jitter_s = 0.003

    def reset(self, seed, task):
        self._left = 2 + seed % 2
        with Letters.lock:
            Letters.resets += 1
            if Letters.resets == Letters.interrupt_at:
                os.kill(os.getpid(), Letters.interrupt_by)
        return f"say {seed % 10}", {"actions": ["a", "b"]}

    def step(self, action):
        time.sleep(random.random() * self.jitter_s)
        self._left -= 1
        reward = sum(ord(letter) % 3 for letter in action) % 5 / 4
        return "more", reward, self._left == 0, False, {"success": reward > 0.5}

    def suggest(self):
        return "b"
