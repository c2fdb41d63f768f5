"""Continuation: a turn cut off on one engine and finished on another.

The engine that goes on reads what was sampled as part of its prompt, so nothing is sampled twice;
the tokens keep the log-probs and versions they were drawn with.
"""

from dataclasses import replace

from rollart.seeds import derive_seed
from rollart.types import Completion, Request


def remainder(request: Request, partial: Completion) -> Request:
    """Return what is still to be asked of a request of which a part was sampled."""
    count = len(partial.tokens)
    if not count:
        return request
    left = request.sampling.max_tokens - count
    assert left > 0
    return replace(
        request,
        tokens=request.tokens + partial.tokens,
        sampling=replace(request.sampling, max_tokens=left),
        seed=derive_seed(request.seed, count),
    )


def join(partial: Completion, rest: Completion) -> Completion:
    """Return a completion that began as `partial` and ended as `rest`."""
    return replace(
        rest,
        tokens=partial.tokens + rest.tokens,
        logprobs=partial.logprobs + rest.logprobs,
        versions=partial.versions + rest.versions,
    )
