"""An actor in this loop: its coroutines are awaited here, and it can die at any time."""

import asyncio
import inspect

from rollart.errors import ActorDiedError


class InlineHandle:
    """Calls an object's methods; once killed, every call fails, those under way included.

    While `hangs` is true, no call is answered that begins.
    """

    def __init__(self, target):
        self.target = target
        self.calls = []
        self.hangs = False
        self.dead = asyncio.Event()

    async def call(self, method, *args):
        if self.dead.is_set():
            raise ActorDiedError("the actor is gone")
        self.calls.append(method)
        work = asyncio.ensure_future(self._run(method, args))
        death = asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise ActorDiedError("the actor is gone")
            return work.result()
        finally:
            work.cancel()
            death.cancel()

    async def _run(self, method, args):
        if self.hangs:
            await self.dead.wait()
        result = getattr(self.target, method)(*args)
        return await result if inspect.isawaitable(result) else result

    async def close(self):
        self.dead.set()

    def kill(self):
        self.dead.set()
