"""Engines that die and return."""

import pytest

from rollart.errors import ConfigError
from rollart.sim.loop import Loop
from rollart.sim.world import OutageOptions, Outages
from rollart.types import EngineId

ENGINES = [EngineId("a"), EngineId("b")]


class Seen:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.seen: list[tuple[str, str, float]] = []

    def lose(self, id_: EngineId) -> None:
        self.seen.append(("lost", id_, self._loop.now))

    def regain(self, id_: EngineId) -> None:
        self.seen.append(("back", id_, self._loop.now))


def play(options: OutageOptions, *, seconds: float) -> tuple[Outages, Seen]:
    loop = Loop()
    told = Seen(loop)
    outages = Outages(options, loop=loop, lose=told.lose, regain=told.regain)
    outages.start(ENGINES)
    while loop.now < seconds and loop.step():
        pass
    return outages, told


def test_engines_live_for_ever_by_default():
    outages, told = play(OutageOptions(), seconds=1e6)
    assert (outages.count, told.seen) == (0, [])


def test_every_death_is_followed_by_a_return_after_the_repair():
    outages, told = play(OutageOptions(mtbf_s=100.0, repair_s=7.0), seconds=20_000.0)
    for engine in ENGINES:
        own = [(what, at) for what, id_, at in told.seen if id_ == engine]
        assert [what for what, _ in own[:4]] == ["lost", "back", "lost", "back"]
        closes, opens = own[::2], own[1::2]
        for (_, died), (_, returned) in zip(closes, opens, strict=False):
            assert returned - died == pytest.approx(7.0)
    assert outages.count / 2 == pytest.approx(20_000 / 107, rel=0.2)


def test_times_depend_on_the_seed_alone():
    options = OutageOptions(mtbf_s=100.0, seed=5)
    same, again = (play(options, seconds=1000.0)[1].seen for _ in range(2))
    other = play(OutageOptions(mtbf_s=100.0, seed=6), seconds=1000.0)[1].seen
    assert same == again != other


@pytest.mark.parametrize("field", ["mtbf_s", "repair_s"])
def test_a_wrong_field_is_named(field):
    with pytest.raises(ConfigError, match=f"outages.{field} = -1"):
        OutageOptions(**{field: -1.0})
