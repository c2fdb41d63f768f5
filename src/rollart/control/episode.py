"""Episode: the turn loop of one attempt, without I/O.

`start` gives the first request; `complete` takes what was sampled and gives the action's text;
`observe` takes the environment's answer and gives the next request, or None when the attempt has
ended. Token ids only grow: what was sampled is kept as sampled, observations are rendered once.
The episode's limits decide when it is cut short, whatever the environment thinks.

Turns: when an attempt ends, counted in turns and tokens.

The part of an episode that needs no tokens, only how many there are; the simulator runs thousands
of attempts on it alone.

Continuation: a turn cut off on one engine and finished on another.

The engine that goes on reads what was sampled as part of its prompt, so nothing is sampled twice;
the tokens keep the log-probs and versions they were drawn with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from rollart.constraints import AtLeast, check_fields
from rollart.errors import EnvError
from rollart.ports import Renderer
from rollart.seeds import derive_seed
from rollart.types import (
    Completion,
    GroupId,
    Json,
    Request,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
    Version,
    token_trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Where an episode is cut short."""

    max_turns: Annotated[int, AtLeast(1)] = 16
    """Most completions in one episode."""
    max_tokens: Annotated[int, AtLeast(2)] = 512
    """Most tokens in one episode, prompts and completions together."""

    def __post_init__(self) -> None:
        check_fields(self, "tasks")


class Turns:
    """How far an attempt has come, and what will end it."""

    __slots__ = ("_limits", "count", "tokens")

    def __init__(self, limits: EpisodeLimits) -> None:
        self._limits = limits
        self.count = 0
        """Turns taken."""
        self.tokens = 0
        """Tokens read and sampled."""

    @property
    def room(self) -> int:
        """How many more tokens the limits allow."""
        return self._limits.max_tokens - self.tokens

    def show(self, tokens: int) -> StopReason | None:
        """Count what the policy reads; say whether that leaves it nothing to sample."""
        self.tokens += tokens
        return "max_tokens" if self.room <= 0 else None

    def sample(self, tokens: int) -> None:
        """Count what the policy sampled."""
        self.tokens += tokens

    def take(self, *, terminated: bool, truncated: bool) -> StopReason | None:
        """Count a turn; say whether it was the last."""
        self.count += 1
        if terminated:
            return "terminated"
        if truncated:
            return "truncated"
        return "max_turns" if self.count >= self._limits.max_turns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What an episode needs to know of its attempt."""

    id: TrajectoryId
    group: GroupId
    task: Task
    system: str
    limits: EpisodeLimits
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What an environment answered to an action."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None = None
    """None: the episode succeeded if it terminated with a positive sum of rewards."""


class Episode:
    """One attempt at a task, as it grows."""

    def __init__(self, spec: Spec, *, renderer: Renderer) -> None:
        self.spec = spec
        self._renderer = renderer
        self._tokens: list[int] = []
        self._progress = Turns(spec.limits)
        self._prompt: tuple[int, ...] = ()
        self._observation = ""
        self._completion: Completion | None = None
        self._action = ""
        self._turns: list[Turn] = []
        self._reward = 0.0
        self._stop: StopReason | None = None
        self._success = False

    @property
    def born(self) -> Version | None:
        """The version that sampled the first token, once there is one."""
        if self._turns:
            return self._turns[0].versions[0]
        return self._completion.versions[0] if self._completion else None

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy has sampled."""
        pending = len(self._completion.tokens) if self._completion else 0
        return pending + sum(len(turn.tokens) for turn in self._turns)

    def start(self, observation: str, payload: Mapping[str, Json] | None = None) -> Request:
        """Open the episode and return its first request.

        `payload` is what the environment has reward functions know of the task it posed.
        """
        if payload:
            task = self.spec.task
            self.spec = replace(self.spec, task=replace(task, payload={**task.payload, **payload}))
        if self._show(observation, self._renderer.start(self.spec.system, observation)):
            limit, length = self.spec.limits.max_tokens, len(self._tokens)
            raise EnvError(
                f"the first observation makes a prompt of {length} tokens, which leaves no room "
                f"within max_tokens = {limit}: raise tasks.{self.spec.task.env}.max_tokens or "
                "shorten the observation"
            )
        return self._request()

    def complete(self, completion: Completion) -> str:
        """Take what was sampled and return the text of the action."""
        self._completion = completion
        self._tokens += completion.tokens
        self._progress.sample(len(completion.tokens))
        self._action = self._renderer.decode(completion.tokens)
        return self._action

    def observe(self, outcome: StepOutcome) -> Request | None:
        """Take the environment's answer; return the next request, or None at the end."""
        completion = self._completion
        assert completion is not None
        self._turns.append(
            Turn(
                prompt_tokens=self._prompt,
                tokens=completion.tokens,
                logprobs=completion.logprobs,
                versions=completion.versions,
                observation=self._observation,
                action=self._action,
                reward=outcome.reward,
            )
        )
        self._completion = None
        self._reward += outcome.reward
        self._stop = self._progress.take(terminated=outcome.terminated, truncated=outcome.truncated)
        if self._stop is None:
            closed = completion.tokens[-1] in self._renderer.stop
            tokens = self._renderer.extend(outcome.observation, closed=closed)
            self._stop = self._show(outcome.observation, tokens)
            if self._stop is None:
                return self._request()
        claimed = outcome.success
        self._success = outcome.terminated and self._reward > 0 if claimed is None else claimed
        return None

    def finish(self) -> Trajectory:
        """Return the frozen record of an episode that has ended."""
        assert self._stop is not None
        return token_trajectory(
            id=self.spec.id,
            group=self.spec.group,
            task=self.spec.task,
            turns=tuple(self._turns),
            stop=self._stop,
            success=self._success,
            reward=self._reward,
        )

    def _show(self, observation: str, tokens: tuple[int, ...]) -> StopReason | None:
        self._observation = observation
        self._prompt = tokens
        self._tokens += tokens
        return self._progress.show(len(tokens))

    def _request(self) -> Request:
        spec, turn = self.spec, len(self._turns)
        room = self._progress.room
        return Request(
            session=spec.id,
            turn=turn,
            domain=spec.task.domain,
            tokens=tuple(self._tokens),
            sampling=replace(spec.sampling, max_tokens=min(spec.sampling.max_tokens, room)),
            stop=self._renderer.stop,
            seed=derive_seed(spec.seed, turn),
        )


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
