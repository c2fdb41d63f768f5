"""An engine as a chat model for judges: text to token ids and back.

Its sessions are negative, so they meet no trajectory's, and are forgotten at once.
"""

from collections.abc import Mapping, Sequence
from itertools import count

from rollart.errors import ScoreError
from rollart.ports import Generator, Renderer
from rollart.rewards.context import Ask
from rollart.types import Request, Sampling, TrajectoryId

DOMAIN = "judge"
"""The domain its requests are of: routing can give it engines of its own."""


def chat_through(generator: Generator, *, renderer: Renderer, sampling: Sampling) -> Ask:
    """Return a chat model that answers through an engine."""
    numbers = count(1)

    async def ask(messages: Sequence[Mapping[str, str]]) -> str:
        texts = {message["role"]: message["content"] for message in messages}
        number = next(numbers)
        session = TrajectoryId(-number)
        request = Request(
            session=session,
            turn=0,
            domain=DOMAIN,
            tokens=renderer.start(texts.get("system", ""), texts["user"]),
            sampling=sampling,
            stop=renderer.stop,
            seed=number,
        )
        try:
            completion = await generator.generate(request)
        finally:
            generator.forget(session)
        if completion.finish != "stop":
            raise ScoreError(f"the judge's answer was cut short: {completion.finish}")
        return renderer.decode(completion.tokens)

    return ask
