import asyncio

import pytest
from scripted_invoker import BROKEN, WRONG, Deed, ScriptedInvoker
from serverless_calls import call
from virtual_time import VirtualClock

from rollart.errors import ScoreError
from rollart.rewards.invoke.options import Reliability
from rollart.rewards.invoke.retry import CallLine, ReliableInvoker
from rollart.types import Reward

IN_VIRTUAL_TIME = True
ONE = (Reward(value=1.0),)


def wrap(
    inner: ScriptedInvoker, *, places: int = 8, queue_limit: int = 100, **options: object
) -> tuple[ReliableInvoker, list[CallLine]]:
    lines: list[CallLine] = []
    chosen = Reliability(**{"backoff_s": 0.001, **options})  # type: ignore[arg-type]
    return (
        ReliableInvoker(
            inner,
            options=chosen,
            places=places,
            queue_limit=queue_limit,
            clock=VirtualClock(asyncio.get_running_loop()),
            on_call=lines.append,
        ),
        lines,
    )


async def test_a_failed_delivery_is_made_again_until_there_is_a_score():
    inner = ScriptedInvoker(BROKEN, BROKEN, 1.0)
    invoker, lines = wrap(inner, price_per_call=0.5)
    asked = call("turns")
    assert await invoker.invoke(asked) == ONE
    assert inner.calls == [asked] * 3
    stats = invoker.stats()
    assert (stats["scored"], stats["retries"], stats["deliveries"]) == (1, 2, 3)
    assert stats["cost"] == 1.5
    assert stats["cold_starts"] == 3
    assert [(line.key, line.deliveries, line.cost, line.failure) for line in lines] == [
        (asked.key, 3, 1.5, "")
    ]


async def test_a_call_that_fails_every_time_is_one_failure_with_the_last_reason():
    invoker, lines = wrap(ScriptedInvoker(BROKEN), attempts=3)
    with pytest.raises(ScoreError) as error:
        await invoker.invoke(call("turns"))
    assert str(error.value) == "the line is broken (delivered 3 times)"
    assert lines[0].failure == str(error.value)
    assert (invoker.stats()["scored"], invoker.stats()["failed"]) == (0, 1)


async def test_a_final_failure_is_not_tried_again():
    inner = ScriptedInvoker(WRONG)
    invoker, _ = wrap(inner)
    with pytest.raises(ScoreError, match="the function is wrong"):
        await invoker.invoke(call("turns"))
    assert len(inner.calls) == 1


async def test_waits_between_deliveries_double_and_vary_by_a_seeded_jitter():
    def waits(seed: int) -> list[float]:
        options = Reliability(backoff_s=1.0, backoff_max_s=3.0, jitter=0.5, seed=seed)
        invoker = ReliableInvoker(ScriptedInvoker(1.0), options=options, places=1, queue_limit=1)
        return [invoker._backoff_s(failures) for failures in (1, 2, 3, 100)]

    assert waits(1) == waits(1) != waits(2)
    assert all(
        0.5 * usual <= wait < 1.5 * usual
        for wait, usual in zip(waits(1), (1, 2, 3, 3), strict=True)
    )


async def test_a_long_first_wait_is_not_cut_short_but_does_not_grow():
    options = Reliability(backoff_s=60.0, jitter=0.0)
    invoker = ReliableInvoker(ScriptedInvoker(1.0), options=options, places=1, queue_limit=1)
    assert [invoker._backoff_s(failures) for failures in (1, 2, 9)] == [60.0, 60.0, 60.0]


async def test_a_duplicate_joins_the_call_on_its_way_and_both_get_its_one_score():
    inner = ScriptedInvoker(1.0, 2.0, delay_s=0.02)
    invoker, lines = wrap(inner)
    asked = call("turns")
    assert await asyncio.gather(*(invoker.invoke(asked) for _ in range(5))) == [ONE] * 5
    assert len(inner.calls) == len(lines) == 1
    assert invoker.stats()["joined"] == 4


async def test_a_key_is_not_shared_by_two_different_calls():
    invoker, _ = wrap(ScriptedInvoker(1.0, delay_s=0.02))
    first = asyncio.create_task(invoker.invoke(call("turns", key="k")))
    await asyncio.sleep(0)
    with pytest.raises(ScoreError, match="key 'k' is in use by another call"):
        await invoker.invoke(call("parted", key="k"))
    assert await first == ONE


async def test_a_call_is_given_up_when_the_last_who_waits_goes_away():
    inner = ScriptedInvoker(None)
    invoker, lines = wrap(inner)
    asked = call("turns")
    waiting = [asyncio.create_task(invoker.invoke(asked)) for _ in range(2)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    await asyncio.wait({waiting[0]})
    assert inner.cancelled == 0
    waiting[1].cancel()
    await asyncio.wait({waiting[1]})
    assert inner.cancelled == 1
    assert [line.failure for line in lines] == ["cancelled"]
    assert invoker.stats()["in_flight"] == 0


async def test_no_more_calls_than_places_are_delivered_at_once_and_the_rest_wait_in_order():
    inner = ScriptedInvoker(1.0, delay_s=0.01)
    invoker, _ = wrap(inner, places=2)
    most: list[float] = []
    inner.on_invoke = lambda: most.append(invoker.stats()["in_flight"])
    asked = [call("turns") for _ in range(6)]
    tasks = [asyncio.create_task(invoker.invoke(each)) for each in asked]
    await asyncio.sleep(0.005)
    assert (invoker.stats()["in_flight"], invoker.stats()["queued"]) == (2, 4)
    await asyncio.gather(*tasks)
    assert max(most) == 2
    assert inner.calls == asked


async def test_a_call_is_refused_when_too_many_wait():
    invoker, _ = wrap(ScriptedInvoker(None), places=1, queue_limit=1)
    running = asyncio.create_task(invoker.invoke(call("turns")))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(invoker.invoke(call("turns")))
    await asyncio.sleep(0.01)
    with pytest.raises(ScoreError, match="turns: the queue is full: 1 calls wait"):
        await invoker.invoke(call("turns"))
    await invoker.close()
    for each in (running, waiting):
        with pytest.raises(ScoreError, match="the invoker was closed"):
            await each


async def test_a_burst_beyond_the_places_waits_longer_than_a_deadline_and_is_scored():
    invoker, _ = wrap(ScriptedInvoker(1.0, delay_s=0.08), places=1, deadline_s=0.5)
    asked = [invoker.invoke(call("turns")) for _ in range(8)]
    assert await asyncio.gather(*asked) == [ONE] * 8


async def test_a_deadline_ends_a_call_whatever_it_waits_for():
    inner = ScriptedInvoker(BROKEN, None)
    invoker, _ = wrap(inner, deadline_s=0.05)
    with pytest.raises(ScoreError, match=r"no score within 0.05 s; the line is broken"):
        await invoker.invoke(call("turns"))
    assert inner.cancelled == 1


@pytest.mark.parametrize(
    ("deeds", "outcome", "won"),
    [
        ((None, 1.0), 1.0, 1),
        ((None, WRONG), "the function is wrong", 0),
    ],
)
async def test_a_late_delivery_gets_a_second_beside_it_and_the_first_answer_is_taken(
    deeds: tuple[Deed, ...], outcome: float | str, won: int
):
    inner = ScriptedInvoker(*deeds)
    invoker, lines = wrap(inner, hedge="after", hedge_after_s=0.02, attempts=1)
    try:
        got: float | str = (await invoker.invoke(call("turns")))[0].value
    except ScoreError as error:
        got = str(error)
    assert got == outcome
    assert (inner.cancelled, len(inner.calls)) == (1, 2)
    assert (invoker.stats()["hedges"], invoker.stats()["hedges_won"]) == (1, won)
    assert (lines[0].deliveries, lines[0].hedges) == (2, 1)
    assert invoker.stats()["in_flight"] == 0


async def test_a_second_delivery_that_fails_leaves_the_first_its_chance():
    class Odd(ScriptedInvoker):
        async def invoke(self, call):
            self.delay_s = 0.06 if not self.calls else 0.0
            return await super().invoke(call)

    invoker, _ = wrap(Odd(1.0, BROKEN), hedge="after", hedge_after_s=0.02, attempts=1)
    assert await invoker.invoke(call("turns")) == ONE


async def test_no_second_delivery_is_made_when_every_place_is_taken():
    inner = ScriptedInvoker(1.0, delay_s=0.05)
    invoker, _ = wrap(inner, places=1, hedge="after", hedge_after_s=0.01)
    assert await invoker.invoke(call("turns")) == ONE
    assert invoker.stats()["hedges"] == 0


async def test_late_is_judged_by_the_95th_percentile_once_enough_is_known():
    inner = ScriptedInvoker(*[1.0] * 25, None, 1.0, delay_s=0.01)
    invoker, _ = wrap(inner, hedge="p95", hedge_after_s=0.02)
    for _ in range(26):
        assert await invoker.invoke(call("turns")) == ONE
    assert invoker.stats()["hedges_won"] == 1


async def test_an_open_circuit_lets_one_probe_through_after_its_rest_and_closes_when_it_succeeds():
    inner = ScriptedInvoker(BROKEN, BROKEN, BROKEN, 1.0)
    invoker, _ = wrap(inner, breaker_failures=2, breaker_rest_s=0.05, attempts=3)
    results = await asyncio.gather(
        *(invoker.invoke(call("turns")) for _ in range(4)), return_exceptions=True
    )
    assert results.count(ONE) == 4
    assert invoker.stats()["breaker_opens"] == 1
    assert invoker.stats()["breakers_open"] == 0


async def test_all_who_wait_at_a_circuit_that_never_closes_fail_with_the_reason():
    inner = ScriptedInvoker(BROKEN)
    invoker, lines = wrap(
        inner, breaker_failures=4, breaker_rest_s=0.01, breaker_probes=2, attempts=100
    )
    results = await asyncio.gather(
        *(invoker.invoke(call("turns")) for _ in range(20)), return_exceptions=True
    )
    assert all(isinstance(each, ScoreError) for each in results)
    assert all("its circuit is open since: the line is broken" in str(each) for each in results)
    assert len(inner.calls) < 20 * 3
    assert len(lines) == 20


async def test_calls_that_waited_for_a_place_when_the_circuit_opened_are_not_delivered():
    inner = ScriptedInvoker(BROKEN)
    invoker, _ = wrap(
        inner, places=1, breaker_failures=2, breaker_rest_s=0.01, breaker_probes=3, attempts=9
    )
    results = await asyncio.gather(
        *(invoker.invoke(call("turns")) for _ in range(20)), return_exceptions=True
    )
    assert all("its circuit is open since" in str(each) for each in results)
    assert len(inner.calls) < 20


async def test_a_function_that_raises_fails_its_calls_at_once_however_many_there_are():
    raised = ScoreError("mine raised ValueError: boom", is_own=True)
    invoker, _ = wrap(ScriptedInvoker(raised), breaker_rest_s=1000.0)
    results = await asyncio.gather(
        *(invoker.invoke(call("turns")) for _ in range(20)), return_exceptions=True
    )
    assert {str(each) for each in results} == {f"{raised} (delivered 4 times)"}
    assert invoker.stats()["breaker_opens"] == 0


async def test_the_circuit_of_one_function_does_not_stop_another():
    invoker, _ = wrap(
        ScriptedInvoker(BROKEN, 1.0), breaker_failures=1, breaker_rest_s=60.0, deadline_s=0.05
    )
    with pytest.raises(ScoreError, match="its circuit is open since: the line is broken"):
        await invoker.invoke(call("turns"))
    assert await invoker.invoke(call("parted")) == ONE


async def test_closing_closes_what_is_inside():
    inner = ScriptedInvoker(1.0)
    invoker, _ = wrap(inner)
    await invoker.close()
    assert inner.is_closed
    with pytest.raises(ScoreError, match="the invoker is closed"):
        await invoker.invoke(call("turns"))


async def test_latencies_are_told_by_percentile():
    invoker, _ = wrap(ScriptedInvoker(1.0, delay_s=0.01))
    for _ in range(10):
        await invoker.invoke(call("turns"))
    stats = invoker.stats()
    assert 0 < stats["latency_p50_s"] <= stats["latency_p95_s"] <= stats["latency_p99_s"]
