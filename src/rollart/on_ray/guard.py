"""The last way out when a cluster is gone: a call of Ray that never returns holds the process."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rollart.on_ray.session import end_now, is_there

_LOOK_S = 1.0


@contextmanager
def guarded(
    head: str, last_words: Callable[[], str], *, patience_s: float = 30.0
) -> Generator[None]:
    """End this process where the head is gone for long and the block has still not ended.

    The event loop notices sooner and ends in order; but any call it makes into Ray meanwhile may
    wait for the head, for minutes, and hold it. `last_words` are said then.
    """
    is_over = threading.Event()

    def look() -> None:
        seen_s = time.monotonic()
        while not is_over.wait(_LOOK_S):
            if is_there(head):
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > patience_s and not is_over.is_set():
                end_now(last_words())

    threading.Thread(target=look, daemon=True, name="ray-guard").start()
    try:
        yield
    finally:
        is_over.set()
