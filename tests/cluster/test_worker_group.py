"""The programming model, over workers that really run in processes of their own."""

import asyncio
import os
import signal

import pytest

from rollart.cluster.local_host import EmbeddedHost
from rollart.cluster.worker_group import (
    Sharing,
    Worker,
    WorkerGroup,
    hw_mapping,
    register,
    serverless,
)
from rollart.errors import ActorDiedError, UserError


def _by_turns(count, args):
    (rows,) = args
    return [(rows[number::count],) for number in range(count)]


class Counter(Worker):
    """Counts words, and knows its rank."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.seen: list[str] = []

    @register("all")
    def hello(self, name: str) -> str:
        """Greet."""
        return f"{name} from {self.rank}"

    @register("split")
    def lengths(self, words: list[str], add: int = 0) -> list[int]:
        return [len(word) + add for word in words]

    @register("together")
    def speak(self, word: str) -> str:
        self.seen.append(word)
        return f"{self.rank} says {self.seen}"

    @register("rank_zero")
    def first(self) -> int:
        return self.rank

    @register("one")
    def process(self) -> int:
        return os.getpid()

    @register(Sharing(divide=_by_turns, collect=sum))
    def total(self, numbers: list[int]) -> int:
        return sum(numbers)

    @hw_mapping({"maze": "H800", "default": "H20"})
    @register("one")
    def where(self) -> int:
        return self.rank

    @serverless("http://127.0.0.1:1/score")
    @register("one")
    def score(self, text: str) -> float:
        return len(text) / 10

    @register("all")
    def fail(self, ranks: list[int]) -> None:
        if self.rank in ranks:
            raise UserError(f"worker {self.rank} cannot")


def with_cluster(scenario, *, pools=("a", "a", "a"), **more):
    async def run():
        host = EmbeddedHost()
        try:
            cluster = await WorkerGroup.open(
                host, Counter, pools=pools, options=lambda rank: {"rank": rank}, **more
            )
            return await scenario(cluster)
        finally:
            await host.close()

    return asyncio.run(run())


def test_a_worker_may_be_called_without_a_cluster():
    worker = Counter(rank=2)
    assert (worker.hello("x"), worker.lengths(["ab"]), worker.total([1, 2])) == ("x from 2", [2], 3)
    assert Counter.hello.__doc__ == "Greet."


def test_each_mode_shares_a_call_out_and_puts_the_results_together():
    async def scenario(cluster):
        words = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]
        return (
            await cluster.call(Counter.hello, "hi"),
            await cluster.call(Counter.lengths, words, 1),
            await cluster.call(Counter.lengths, ["a"]),
            await cluster.call(Counter.lengths, []),
            await cluster.call(Counter.first),
            await cluster.call(Counter.speak, "so"),
            await cluster.call(Counter.total, [1, 2, 3, 4]),
        )

    assert with_cluster(scenario) == (
        ["hi from 0", "hi from 1", "hi from 2"],
        [2, 3, 4, 5, 6, 7, 8],
        [1],
        [],
        0,
        "0 says ['so']",
        10,
    )


def test_calls_start_at_once_and_go_to_the_least_busy():
    async def scenario(cluster):
        calls = [cluster.call(Counter.process) for _ in range(6)]
        return await asyncio.gather(*calls)

    pids = with_cluster(scenario)
    assert len(set(pids)) == 3
    assert os.getpid() not in pids


def test_a_tagged_call_goes_to_the_hardware_its_task_prefers_and_elsewhere_if_there_is_none():
    async def scenario(cluster):
        return [
            await cluster.call_tagged("maze", Counter.where),
            await cluster.call_tagged("math", Counter.where),
            await cluster.call(Counter.where),
        ]

    assert with_cluster(scenario, pools=("H20", "H800")) == [1, 0, 0]
    assert with_cluster(scenario, pools=("L40S",)) == [0, 0, 0]


def test_a_serverless_method_leaves_for_its_function_and_for_nothing_else():
    async def invoke(function, name, args):
        return [function.url, name, *args]

    async def scenario(cluster):
        return await cluster.call(Counter.score, "12345")

    with pytest.raises(UserError) as caught:
        with_cluster(scenario, pools=("a",))
    assert str(caught.value) == (
        "score is a function at http://127.0.0.1:1/score: give WorkerGroup.open an invoke, such as "
        "HttpMethods()"
    )
    told = with_cluster(scenario, pools=("a",), invoke=invoke)
    assert told == ["http://127.0.0.1:1/score", "score", "12345"]


def test_a_worker_that_is_gone_is_called_once_and_others_join_and_leave():
    async def scenario(cluster):
        lost, left, *_ = cluster.members
        os.kill(await lost.handle.call("process"), signal.SIGKILL)
        with pytest.raises(ActorDiedError):
            await cluster.call(Counter.process)
        pids = {await cluster.call(Counter.process) for _ in range(3)}
        assert pids == {await left.handle.call("process")}
        with pytest.raises(ActorDiedError):
            await cluster.call(Counter.hello, "all")
        cluster.remove(lost)
        assert await cluster.call(Counter.hello, "all") == ["all from 1"]
        cluster.remove(left)
        with pytest.raises(UserError, match="process: no worker is alive; 0 have died"):
            cluster.call(Counter.process)
        again = cluster.add(left.handle, pool="b")
        assert (await cluster.call(Counter.where), again.pool, again.in_flight) == (1, "b", 0)

    with_cluster(scenario, pools=("a", "a"))


def test_one_worker_that_fails_fails_the_call_after_all_have_answered():
    async def scenario(cluster):
        with pytest.raises(UserError, match="worker 1 cannot"):
            await cluster.call(Counter.fail, [1])
        return await cluster.call(Counter.first)

    assert with_cluster(scenario) == 0


def test_the_answers_of_the_workers_can_be_had_one_by_one():
    async def scenario(cluster):
        answers = cluster.spread(Counter.fail, [1])
        errors = await asyncio.gather(*answers, return_exceptions=True)
        speaking = await asyncio.gather(*cluster.spread(Counter.speak, "so"))
        return [str(error) for error in errors], speaking

    assert with_cluster(scenario) == (
        ["None", "worker 1 cannot", "None"],
        [f"{rank} says ['so']" for rank in range(3)],
    )


def test_wrong_uses_say_what_is_wanted():
    with pytest.raises(UserError, match='hw_mapping chooses one worker: register\\("one"\\)'):
        hw_mapping({})(Counter.hello)
    with pytest.raises(UserError, match='a function answers one call: register\\("one"\\)'):
        serverless("http://127.0.0.1:1")(Counter.hello)

    async def scenario(cluster):
        with pytest.raises(UserError, match="divides its first argument, a sequence; it was 3"):
            await cluster.call(Counter.lengths, 3)
        with pytest.raises(UserError, match="give the arguments of a group's call by position"):
            cluster.call(Counter.lengths, words=[])

    with_cluster(scenario, pools=("a",))


def test_a_cluster_that_cannot_be_made_leaves_no_worker():
    async def run():
        host = EmbeddedHost()
        try:
            with pytest.raises(Exception, match="unexpected keyword"):
                await WorkerGroup.open(
                    host, Counter, pools=("a", "b"), options=lambda rank: {"x": 1} if rank else {}
                )
        finally:
            await host.close()

    asyncio.run(run())
