"""Seeds: those of tasks, attempts and evaluations are derived from `run.seed`.

`model.seed` and `training.seed` are not derived; each is independent.
A derived seed depends only on the numbers it is derived from, never on the order of draws, so a
trajectory samples the same tokens whenever and wherever it runs.
"""

_MASK = (1 << 64) - 1


def derive_seed(seed: int, *parts: int) -> int:
    """Return a 63-bit seed determined by `seed` and `parts` (splitmix64 over each in turn).

    63 bits, so that the seed fits a signed 64-bit integer.
    """
    state = seed & _MASK
    for part in parts:
        state = _mix(state ^ _mix(part & _MASK))
    return _mix(state) >> 1


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
