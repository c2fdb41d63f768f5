import asyncio
import threading

import pytest
from conditions import BOUND_S

from rollart.rollout.env_threads import EnvThread, EnvThreads


def count() -> int:
    return sum(each.name == "env" for each in threading.enumerate())


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_the_calls_of_an_environment_run_in_order_in_one_thread():
    async def main():
        thread = EnvThread(EnvThreads())
        error = StopIteration("over")

        def fail():
            raise error

        calls = [thread.submit(lambda: 1), thread.submit(fail), thread.submit(lambda: 2)]
        where = [await thread.submit(threading.get_ident).future for _ in range(2)]
        thread.release()
        return [await call.future for call in calls], error, where

    answers, error, where = asyncio.run(main())
    assert answers == [(1, None), (None, error), (2, None)]
    assert where[0] == where[1] != (threading.get_ident(), None)


def test_what_arrives_when_nobody_waits_is_given_away():
    async def main():
        threads, go, got = EnvThreads(), threading.Event(), asyncio.Queue[object]()

        def late():
            go.wait(BOUND_S)
            return "made late"

        threads.expire(EnvThread(threads).submit(late, unwanted=got.put_nowait))
        go.set()
        return await got.get()

    assert asyncio.run(main()) == "made late"


def test_a_late_error_is_given_to_nobody():
    async def main():
        threads, got = EnvThreads(), list[object]()
        thread = EnvThread(threads)

        def fail():
            raise ValueError

        threads.give_up(thread.submit(fail, unwanted=got.append))
        await thread.submit(lambda: None).future
        return got

    assert asyncio.run(main()) == []


def test_a_released_thread_serves_others_after_its_calls():
    async def main():
        threads = EnvThreads()
        thread = EnvThread(threads)
        inside = thread.submit(threading.get_ident)
        thread.release()
        return await inside.future, await threads.submit(threading.get_ident).future

    inside, after = asyncio.run(main())
    assert inside == after


def test_environments_that_keep_a_thread_leave_one_for_others_at_once():
    async def main():
        threads = EnvThreads()
        kept = [EnvThread(threads) for _ in range(50)]
        calls = [thread.submit(threading.get_ident) for thread in kept]
        where = {await call.future for call in calls}
        for thread in kept:
            thread.release()
        return len(where)

    assert asyncio.run(main()) == 50


def test_calls_that_do_not_block_share_a_thread(monkeypatch):
    # More would start if the machine were too busy to serve them by then.
    monkeypatch.setattr("rollart.rollout.env_threads._GROW_S", BOUND_S)

    async def main():
        threads, before = EnvThreads(), count()
        calls = [threads.submit(threading.get_ident) for _ in range(500)]
        await asyncio.gather(*[call.future for call in calls])
        return count() - before

    assert asyncio.run(main()) == 1


def test_a_call_that_hangs_costs_its_thread_and_nobody_else(release):
    async def main():
        threads = EnvThreads()
        hung = [threads.submit(release.wait) for _ in range(20)]
        async with asyncio.timeout(BOUND_S):
            assert await threads.submit(lambda: "answered").future == ("answered", None)
        assert not any(call.future.done() for call in hung)

    asyncio.run(main())


def test_shared_threads_end_when_they_are_idle_and_start_again(monkeypatch):
    monkeypatch.setattr("rollart.rollout.env_threads._IDLE_S", 0.05)

    async def main():
        threads = EnvThreads()
        worker, _ = await threads.submit(threading.current_thread).future
        await asyncio.to_thread(worker.join, BOUND_S)
        assert not worker.is_alive()
        return await threads.submit(lambda: "another thread").future

    assert asyncio.run(main()) == ("another thread", None)


def test_an_answer_for_a_closed_loop_ends_nothing():
    threads, go, after = EnvThreads(), threading.Event(), threading.Event()

    async def main():
        threads.submit(lambda: go.wait(BOUND_S))
        threads.submit(after.set)

    asyncio.run(main())
    go.set()
    assert after.wait(timeout=BOUND_S)
