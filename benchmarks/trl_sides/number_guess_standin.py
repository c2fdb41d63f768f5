import random
class NumberGuess:
    system_prompt = "Find the number."
    inline = True
    def __init__(self, *, high=15):
        self.high = high
    def reset(self, seed, task):
        self.target = random.Random(seed).randint(1, self.high)
        self.low, self.top = 1, self.high
        return f"1 to {self.high}", self.info()
    def info(self, success=False):
        return {"success": success, "actions": [str(n) for n in range(1, self.high + 1)]}
    def step(self, action):
        try:
            n = int(action)
        except ValueError:
            return "illegal", 0.0, False, False, self.info()
        if n == self.target:
            return "correct", 1.0, True, False, self.info(True)
        if n < self.target:
            self.low = max(self.low, n + 1)
            return "higher", 0.0, False, False, self.info()
        self.top = min(self.top, n - 1)
        return "lower", 0.0, False, False, self.info()
    def suggest(self):
        return str((self.low + self.top) // 2)
