import asyncio
import threading

from rollart.rollout.env_threads import EnvThread


def test_calls_run_in_order_and_answer_with_values_or_errors():
    async def main():
        thread = EnvThread()
        error = StopIteration("over")

        def fail():
            raise error

        answers = [thread.submit(lambda: 1), thread.submit(fail), thread.submit(lambda: 2)]
        return await asyncio.gather(*answers), error

    answers, error = asyncio.run(main())
    assert answers == [(1, None), (None, error), (2, None)]


def test_what_comes_when_nobody_waits_is_handed_away():
    async def main():
        thread, go, got = EnvThread(), threading.Event(), asyncio.Queue[object]()

        def late():
            go.wait()
            return "made late"

        thread.submit(late, got.put_nowait).cancel()
        go.set()
        return await got.get()

    assert asyncio.run(main()) == "made late"


def test_a_late_error_is_handed_to_nobody():
    async def main():
        thread, got = EnvThread(), list[object]()

        def fail():
            raise ValueError

        thread.submit(fail, got.append).cancel()
        await thread.submit(lambda: None)
        return got

    assert asyncio.run(main()) == []


def test_an_abandoned_thread_ends_after_its_calls():
    async def main():
        thread = EnvThread()
        inside = thread.submit(threading.current_thread)
        thread.abandon()
        return await inside

    worker, _ = asyncio.run(main())
    assert isinstance(worker, threading.Thread)
    worker.join(timeout=10)
    assert not worker.is_alive()


def test_an_answer_for_a_closed_loop_ends_nothing():
    thread, go, after = EnvThread(), threading.Event(), threading.Event()

    async def main():
        thread.submit(go.wait)
        thread.submit(after.set)

    asyncio.run(main())
    go.set()
    assert after.wait(timeout=10)
