import asyncio
import threading
import time

import pytest

from rollart.rollout.env_threads import EnvThread, EnvThreads

LONG_S = 20.0


def count() -> int:
    return sum(each.name == "env" for each in threading.enumerate())


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


async def made(threads: EnvThreads, env: object = "env") -> EnvThread:
    call = threads.make(lambda: env, keeps_thread=lambda _env: True, unwanted=lambda _made: None)
    (same, thread), error = await call.future
    assert (same, error) == (env, None)
    return thread


def test_the_thread_that_made_an_environment_runs_its_calls_in_order():
    async def main():
        thread = await made(EnvThreads())
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
            go.wait(LONG_S)
            return "made late"

        call = threads.make(late, keeps_thread=lambda _env: False, unwanted=got.put_nowait)
        threads.expire(call)
        go.set()
        return await got.get()

    assert asyncio.run(main()) == ("made late", None)


def test_a_late_error_is_given_to_nobody():
    async def main():
        threads, got = EnvThreads(), list[object]()

        def fail():
            raise ValueError

        call = threads.make(fail, keeps_thread=lambda _env: False, unwanted=got.append)
        threads.give_up(call)
        await threads.submit(lambda: None).future
        return got

    assert asyncio.run(main()) == []


def test_a_released_thread_serves_others_after_its_calls():
    async def main():
        threads = EnvThreads()
        thread = await made(threads)
        before = count()
        inside = thread.submit(threading.get_ident)
        thread.release()
        return await inside.future, await threads.submit(threading.get_ident).future, before

    inside, after, _ = asyncio.run(main())
    assert inside == after


def test_calls_that_do_not_block_share_one_thread():
    async def main():
        threads, before = EnvThreads(), count()
        calls = [threads.submit(threading.get_ident) for _ in range(500)]
        where = {await call.future for call in calls}
        return len(where), count() - before

    used, started = asyncio.run(main())
    assert used <= 4, "more threads than a slow machine would start"
    assert started <= 4


def test_a_call_that_hangs_costs_its_thread_and_nobody_else(release):
    async def main():
        threads = EnvThreads()
        hung = [threads.submit(release.wait) for _ in range(20)]
        began_s = time.monotonic()
        assert await threads.submit(lambda: "answered").future == ("answered", None)
        assert time.monotonic() - began_s < LONG_S / 2
        assert not any(call.future.done() for call in hung)

    asyncio.run(main())


def test_shared_threads_end_when_they_are_idle(monkeypatch):
    monkeypatch.setattr("rollart.rollout.env_threads._IDLE_S", 0.05)

    async def main():
        threads = EnvThreads()
        ends = time.monotonic() + LONG_S
        worker, _ = await threads.submit(threading.current_thread).future
        while worker.is_alive():
            assert time.monotonic() < ends
            await asyncio.sleep(0.01)
        return await threads.submit(lambda: "another thread").future

    assert asyncio.run(main()) == ("another thread", None)


def test_an_answer_for_a_closed_loop_ends_nothing():
    threads, go, after = EnvThreads(), threading.Event(), threading.Event()

    async def main():
        threads.submit(lambda: go.wait(LONG_S))
        threads.submit(after.set)

    asyncio.run(main())
    go.set()
    assert after.wait(timeout=10)


def test_a_thread_whose_environment_was_made_for_a_closed_loop_serves_others():
    threads, go = EnvThreads(), threading.Event()

    async def first():
        threads.make(
            lambda: go.wait(LONG_S), keeps_thread=lambda _env: True, unwanted=lambda _made: None
        )

    async def second():
        return await threads.submit(lambda: "answered").future

    asyncio.run(first())
    go.set()
    assert asyncio.run(second()) == ("answered", None)
