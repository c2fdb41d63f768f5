"""Actors for the tests of the Ray host; light to import."""

import asyncio
import os
import time


class Meeting:
    """Two calls that wait for each other: each returns only if both run at once."""

    def __init__(self):
        self.arrived = 0
        self.both = asyncio.Event()

    async def meet(self):
        self.arrived += 1
        if self.arrived == 2:
            self.both.set()
        await self.both.wait()
        return os.getpid()


class Slow:
    """Takes long to be made."""

    def __init__(self):
        time.sleep(600)


class Messenger:
    """Passes calls on to another actor."""

    async def ask(self, handle, method, *args):
        return await handle.call(method, *args)
