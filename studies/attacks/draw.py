"""All attacks, and a seeded draw of many."""

from random import Random

from studies.attacks.attack import WAYS, Attack
from studies.attacks.greed import DAEMONS, GREED
from studies.attacks.powers import POWERS
from studies.attacks.reach import FILES, NETWORK

ATTACKS = (*NETWORK, *FILES, *POWERS, *GREED, *DAEMONS)


def draw(count: int, *, seed: int) -> list[tuple[Attack, str]]:
    """Return `count` attacks with the way each is started: all kinds, all ways, shuffled."""
    random = Random(seed)
    ways = list(WAYS)
    drawn = [(ATTACKS[i % len(ATTACKS)], random.choice(ways)) for i in range(count)]
    random.shuffle(drawn)
    return drawn
