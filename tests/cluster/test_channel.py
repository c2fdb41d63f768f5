"""Many messages in few calls, none of them lost, and the end of the other side noticed.

All of it in virtual time: a sleep lets everything happen that is ready to.
"""

import asyncio
import contextlib
import random

import pytest
import virtual_time
from inline_handle import InlineHandle

from rollart.cluster.channel import Channel, InOrder, Mailbox
from rollart.errors import ActorDiedError


class Doubler:
    """Answers every number with its double, some passes of the loop later."""

    def __init__(self):
        self.mailbox = Mailbox()
        self.sizes = []

    async def exchange(self, caller, number, messages):
        assert caller == "me"
        self.sizes.append(len(messages))
        for message in messages:
            asyncio.get_running_loop().call_later(0.001 * (message % 3), self.answer, message)
        return await self.mailbox.collect(number)

    def answer(self, message):
        self.mailbox.put(2 * message)


def talk(scenario):
    async def run():
        server, heard, lost = Doubler(), [], []
        handle = InlineHandle(server)
        sent = []
        line = Channel(
            handle,
            name="me",
            receive=heard.append,
            is_listening=lambda: len(heard) < len(sent),
            lose=lost.append,
        )
        await asyncio.wait_for(scenario(line, handle, sent, heard, lost, server), 10)
        line.close()

    virtual_time.run(lambda _loop: run())


def test_every_message_is_answered_and_those_of_one_pass_share_a_call():
    async def scenario(line, handle, sent, heard, lost, server):
        for burst in range(20):
            for number in range(50):
                sent.append(50 * burst + number)
                line.send(sent[-1])
            await asyncio.sleep(0.0005)
        while len(heard) < len(sent):
            await asyncio.sleep(0.001)
        assert sorted(heard) == [2 * number for number in sent]
        assert max(server.sizes) == 50
        assert sum(server.sizes) == 1000
        assert lost == []

    talk(scenario)


def test_nothing_is_called_when_nothing_is_awaited():
    async def scenario(line, handle, sent, heard, lost, server):
        sent.append(1)
        line.send(1)
        while len(heard) < 1:
            await asyncio.sleep(0.001)
        calls = len(handle.calls)
        await asyncio.sleep(0.02)
        assert len(handle.calls) == calls

    talk(scenario)


def test_the_end_of_the_other_side_is_told_once_and_ends_the_line():
    async def scenario(line, handle, sent, heard, lost, server):
        sent.extend([1, 2])
        line.send(1)
        await asyncio.sleep(0)
        line.send(2)
        await asyncio.sleep(0)
        handle.kill()
        while not lost:
            await asyncio.sleep(0.001)
        line.send(3)
        await asyncio.sleep(0.01)
        assert [type(error) for error in lost] == [ActorDiedError]

    talk(scenario)


class Stubborn:
    """Fails the second call, and then answers the first, though it was given up."""

    def __init__(self):
        self.is_answered = False

    async def call(self, _method, _name, number, _messages):
        if number == 1:
            raise ActorDiedError("gone")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.005)
        self.is_answered = True
        return ["too late"]


def test_what_is_answered_after_the_loss_was_told_is_not_heard():
    async def run():
        heard, lost, handle = [], [], Stubborn()
        line = Channel(
            handle, name="me", receive=heard.append, is_listening=lambda: True, lose=lost.append
        )
        line.send(1)
        await asyncio.sleep(0)
        line.send(2)
        async with asyncio.timeout(10):
            while not handle.is_answered:
                await asyncio.sleep(0.001)
        assert (heard, [str(error) for error in lost]) == ([], ["gone"])

    virtual_time.run(lambda _loop: run())


def test_a_later_call_lets_the_one_before_it_return():
    async def run():
        mailbox = Mailbox()
        first = asyncio.create_task(mailbox.collect(0))
        await asyncio.sleep(0)
        second = asyncio.create_task(mailbox.collect(1))
        assert await asyncio.wait_for(first, 1) == []
        assert not second.done()
        mailbox.put("a")
        mailbox.put("b")
        assert await asyncio.wait_for(second, 1) == ["a", "b"]

    virtual_time.run(lambda _loop: run())


def test_parcels_are_taken_in_the_order_of_their_numbers():
    order = InOrder()
    assert order.take(1, ["c"]) == []
    assert order.take(0, ["a", "b"]) == ["a", "b", "c"]
    assert order.take(3, []) == []
    assert order.take(2, ["d"]) == ["d"]


class Overtaking:
    """A way to a server on which calls and answers overtake each other."""

    def __init__(self, server):
        self.server = server
        self.dice = random.Random(5)

    async def call(self, method, *args):
        await asyncio.sleep(self.dice.random() / 100)
        answer = await getattr(self.server, method)(*args)
        await asyncio.sleep(self.dice.random() / 100)
        return answer


class Echoing:
    """Says in order what it is told in order."""

    def __init__(self):
        self.mailbox = Mailbox()
        self.order = InOrder()

    async def exchange(self, caller, number, messages):
        for message in self.order.take(number, messages):
            self.mailbox.put(message)
        return await self.mailbox.collect(number)


def test_what_overtakes_on_the_way_is_heard_in_order():
    async def run():
        heard, sent, lost = [], list(range(300)), []
        line = Channel(
            Overtaking(Echoing()),
            name="me",
            receive=heard.append,
            is_listening=lambda: len(heard) < len(sent),
            lose=lost.append,
        )
        for number in sent:
            line.send(number)
            if number % 7 == 0:
                await asyncio.sleep(0.001)
        async with asyncio.timeout(10):
            while len(heard) < len(sent):
                await asyncio.sleep(0.001)
        assert (heard, lost) == (sent, [])
        line.close()

    virtual_time.run(lambda _loop: run())


def test_a_mailbox_that_failed_answers_every_call_with_the_error():
    async def run():
        mailbox = Mailbox()
        waiting = asyncio.create_task(mailbox.collect(0))
        await asyncio.sleep(0)
        mailbox.put("unheard")
        mailbox.fail(KeyError("broken"))
        for call in (waiting, mailbox.collect(1)):
            with pytest.raises(KeyError, match="broken"):
                await asyncio.wait_for(call, 1)

    virtual_time.run(lambda _loop: run())
