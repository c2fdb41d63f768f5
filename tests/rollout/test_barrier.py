import asyncio

from rollart.rollout.barrier import LockStepBarrier, NoBarrier
from rollart.types import TrajectoryId

A, B, C = (TrajectoryId(number) for number in range(3))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_open_gate_lets_everybody_pass():
    async def run():
        gate = NoBarrier()
        gate.join([A, B])
        async with asyncio.timeout(60):
            await gate.arrive(A)
        gate.leave(A)

    asyncio.run(run())


def test_episodes_in_lock_step_go_on_together_in_id_order():
    async def run():
        gate, passed = LockStepBarrier(), []

        async def go(id_: TrajectoryId) -> None:
            await gate.arrive(id_)
            passed.append(id_)

        gate.join([A, B, C])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(go(C))
            tasks.create_task(go(A))
            await settle()
            assert passed == []
            tasks.create_task(go(B))
        return passed

    assert asyncio.run(run()) == [A, B, C]


def test_an_episode_that_leaves_is_not_waited_for():
    async def run():
        gate = LockStepBarrier()
        gate.join([A, B])
        waiting = asyncio.create_task(gate.arrive(A))
        await settle()
        assert not waiting.done()
        gate.leave(B)
        async with asyncio.timeout(60):
            await waiting

    asyncio.run(run())


def test_episodes_cancelled_together_leave_one_by_one():
    async def run():
        gate = LockStepBarrier()
        gate.join([A, B, C])

        async def busy() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                gate.leave(A)

        async def at_the_gate(id_: TrajectoryId) -> None:
            try:
                await gate.arrive(id_)
            finally:
                gate.leave(id_)

        tasks = [asyncio.create_task(each) for each in (busy(), at_the_gate(B), at_the_gate(C))]
        await settle()
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    assert [type(result) for result in results] == [asyncio.CancelledError] * 3
