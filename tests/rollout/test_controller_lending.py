"""Engines on training hardware, live: turns they give back go on elsewhere."""

import asyncio

import pytest
from live_parts import ENGINE, LENT, STOP, Countdown, Live, make_access, make_setup, make_task
from live_parts import running_proxy as open_proxy

from rollart.control.lending import Lending
from rollart.control.rules import MODES, Batching, Filter, Rules
from rollart.control.staleness import Staleness
from rollart.events import EngineLent, EngineRecalled, Lend, Recall, Train
from rollart.inference.scripted import ScriptedEngine
from rollart.observe.replay import replay
from rollart.rollout.env_manager import EnvManager
from rollart.rollout.env_slot import EnvSlot
from rollart.types import AttemptSpec, GroupId, Sampling, SlotId, TrajectoryId, Version

LENGTH = 40
WORD = (ord("x"),) * LENGTH
LONG = {"sampling": Sampling(max_tokens=LENGTH + 1)}


def spell(request):
    """Say the rest of a word of which the request may hold the beginning."""
    said = 0
    while request.tokens[-1 - said] == ord("x"):
        said += 1
    return (*WORD[said:], STOP)


async def play_across_engines(evictions: int):
    """Play one turn whose engine gives it back some times; return its record."""
    engines = {ENGINE: ScriptedEngine(spell), LENT: ScriptedEngine(spell, version=Version(7))}
    async with open_proxy(engines[ENGINE]) as first, open_proxy(engines[LENT]) as second:
        proxies = {ENGINE: first, LENT: second}
        access = make_access(proxies, closed=[LENT])
        setup = make_setup(lambda _slot: Countdown(turns=1), **LONG)
        spec = AttemptSpec(
            id=TrajectoryId(1),
            group=GroupId(0),
            task=make_task(1),
            system="",
            limits=setup.limits,
            sampling=setup.sampling,
            seed=3,
        )
        manager = EnvManager(spec, setup=setup, slot=EnvSlot(SlotId(0)), access=access)
        playing = asyncio.create_task(manager.play(lambda _version: None))
        here, there = ENGINE, LENT
        async with asyncio.timeout(60):
            for _ in range(evictions):
                sampled = engines[here].stats()["sampled_tokens"]
                while engines[here].stats()["sampled_tokens"] < sampled + 3:
                    await asyncio.sleep(0)
                access.engines.router.open(there, "local")
                access.engines.router.close(here)
                await proxies[here].evict()
                await proxies[there].resume()
                assert not engines[here].busy
                here, there = there, here
            return await playing


@pytest.mark.parametrize("evictions", [0, 1, 3])
def test_a_turn_given_back_goes_on_elsewhere_with_what_it_has(evictions):
    (turn,) = asyncio.run(play_across_engines(evictions)).turns
    assert turn.tokens == (*WORD, STOP)
    assert len(turn.logprobs) == len(turn.versions) == LENGTH + 1
    changes = sum(a != b for a, b in zip(turn.versions, turn.versions[1:], strict=False))
    assert (turn.versions[0], changes) == (0, evictions)


@pytest.mark.parametrize("mode", MODES)
def test_training_hardware_serves_between_the_steps_of_a_run(mode, tmp_path):
    lent = ScriptedEngine(spell)
    rules = Rules(
        steps=4,
        mode=MODES[mode],
        batching=Batching(groups_per_step=2, group_size=2),
        staleness=Staleness(alpha=1),
        filter=Filter(drop_zero_variance=False),
        lending=Lending(enabled=True, min_idle_s=0.0),
    )
    live = Live(
        rules=rules,
        directory=tmp_path,
        make=lambda _slot: Countdown(),
        engine=ScriptedEngine(spell),
        lent=lent,
        setup=LONG,
    ).run()
    away = False
    for event, commands in live.seen:
        away = (away or isinstance(event, EngineLent)) and not isinstance(event, EngineRecalled)
        assert not (away and any(isinstance(each, Train) for each in commands))
    issued = [type(command) for _, commands in live.seen for command in commands]
    assert issued.count(Lend) == issued.count(Recall) >= 1
    assert lent.stats()["sampled_tokens"] > 0
    turns = [turn for batch in live.batches for group in batch for t in group for turn in t.turns]
    assert {turn.tokens for turn in turns} == {(*WORD, STOP)}
    proof = replay(tmp_path)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
