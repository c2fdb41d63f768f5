"""EnvManager: runs one attempt in one environment slot, from reset to record.

It gives a player what it needs (`AttemptContext`): the environment with its time limits, the
engines, the renderer. It keeps the deadline of the episode, notes the weights of the first action
and the cost so far. The player decides only what is asked of the policy and which actions are
taken.

What the policy causes is an outcome, never a failure that is tried again: an episode that exceeds
its time limit ends, truncated, with the turn in which that happens; a text that the user's parser
cannot read is a turn that the environment does not see (`Unread`). Only an environment that hangs
in one call, or an episode that does not end within twice its limit, fails.

A failure has one cause. What the context's methods raise is noted as it leaves them, so an error
that reaches `play` is known by identity, not by class: noted, it comes from the environment, the
parser or the engines; otherwise it is the player's own and fails this attempt alone.

Requests are routed in this process, so no turn visits the controller. An environment that is still
busy when its attempt is cancelled is abandoned, not awaited.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, NoReturn

from rollart.errors import EnvError, InvariantError, PrunedError, UserError, describe_error
from rollart.inference.driver import RequestError
from rollart.ports import Env, Player, Renderer
from rollart.rollout.barrier import Barrier
from rollart.rollout.engine_client import EngineClient, ResidentPolicies
from rollart.rollout.env_contract import AttemptError, UnreadableError, where_raised
from rollart.rollout.env_slot import EnvSlot, Timeouts
from rollart.rollout.players.token_turns import TurnPlayer
from rollart.types import (
    AttemptSpec,
    Completion,
    EngineId,
    EpisodeLimits,
    FailureKind,
    Json,
    Played,
    Request,
    ResidentPolicy,
    Sampling,
    StepOutcome,
    Trajectory,
    Version,
)

_PRUNED_PAUSE_S = 0.1
_MOST_PRUNED = 300
"""How often an engine is asked again because the weights it named were pruned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """What follows when the user's parser raises on what the policy wrote.

    Example: `Unread(then="end", reward=-1.0)`
    """

    then: Literal["observe", "end"] = "observe"
    """The next observation says so, or the episode ends."""
    reward: float = 0.0
    """What the turn earns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one kind of task is run.

    Example:
        Setup(make=lambda slot: FrozenLake(), system="You walk on ice.", limits=EpisodeLimits(),
              sampling=Sampling(max_tokens=4), timeouts=Timeouts(step_s=5.0))

    """

    make: Callable[[int], Env]
    """Makes the environment of a slot."""
    parse: Callable[[str], str] | None = None
    """The user's parser of actions; None strips the text."""
    unread: Unread = Unread()
    """What follows when it raises."""
    player: Player = field(default_factory=TurnPlayer)
    """Plays every attempt of this kind, many at once."""
    system: str
    limits: EpisodeLimits
    sampling: Sampling
    timeouts: Timeouts
    scoring: Literal["env", "each", "group"] = "env"
    """Where rewards come from: the environment, reward functions that take each attempt by itself,
    or such that compare all attempts at a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What every EnvManager of a process shares.

    Example:
        Access(renderer=ChatRenderer(tokenizer), engines=EngineClient(router, ...),
               barrier=NoBarrier(), is_fresh=scheduler.is_fresh)

    """

    renderer: Renderer | None
    """None where the policy reads no text."""
    engines: EngineClient
    barrier: Barrier
    is_fresh: Callable[[Version], bool] = lambda _born: True
    """Says whether an attempt of these weights may still be trained on. By default always: in a
    process that does not know the versions, the scheduler cancels attempts that grow too old."""
    policies: ResidentPolicies | None = None
    """Those of this process, where the policy acts by itself."""


class EnvManager:
    """One attempt at one task; the `AttemptContext` of its player."""

    def __init__(self, spec: AttemptSpec, *, setup: Setup, slot: EnvSlot, access: Access) -> None:
        self._spec = spec
        self._setup = setup
        self._slot = slot
        self._access = access
        self.turns = 0
        """How many times the policy has acted."""
        self._born: Version | None = None
        self._on_birth: Callable[[Version], None] | None = None
        self._is_asking = False
        self._ends_s = inf
        self._is_out_of_time = False
        self._unread: UnreadableError | None = None
        """What the parser said of the last text, if it could not read it."""
        self.unread = 0
        """Turns in which it could not."""
        self._failures: list[Exception] = []
        """What the methods that a player calls have raised."""
        self.cost = 0
        """What the policy has produced so far."""
        self.served: Counter[EngineId] = Counter()
        """Turns by the engine that completed them."""
        self.opening: tuple[Any, dict[str, Json]] = (None, {})
        """What the environment's reset returned."""

    @property
    def spec(self) -> AttemptSpec:
        """The attempt; after `reset` its task holds what the environment says of it."""
        return self._spec

    @property
    def renderer(self) -> Renderer:
        """Writes messages as the tokens the model reads."""
        renderer = self._access.renderer
        if renderer is None:
            message = f"{self._task_name}: the policy reads no text"
            raise AttemptError("player", f"{message}: choose a player for its kind")
        return renderer

    async def play(self, on_birth: Callable[[Version], None]) -> Trajectory:
        """Play the attempt to its end; raises AttemptError when something fails under it."""
        self._on_birth = on_birth
        limit_s = self._setup.timeouts.episode_s
        self._ends_s = asyncio.get_running_loop().time() + limit_s
        # The turn under way when the time is up is played to its end.
        deadline = asyncio.timeout(2 * limit_s)
        try:
            async with deadline:
                return self._record(await self._play())
        except TimeoutError:
            if not deadline.expired():
                raise
            self._slot.close()
            spent = f"the episode took more than twice its limit of {limit_s:g} s"
            message = f"{self._task_name}: {spent}"
            raise AttemptError("episode_timeout", message) from None
        finally:
            self._access.engines.forget(self._spec.id)

    async def reset(self) -> tuple[Any, dict[str, Json]]:
        """Start the episode: return the first observation and the environment's info."""
        try:
            return await self._reset()
        except Exception as error:
            raise self._noted(error) from error.__cause__

    async def policy(self) -> ResidentPolicy:
        """Return the policy of this process, with the weights that engines serve now."""
        spec, policies = self._spec, self._access.policies
        assert policies is not None
        asked = Request(
            session=spec.id,
            turn=0,
            domain=spec.task.domain,
            tokens=(0,),
            sampling=Sampling(max_tokens=1),
            stop=(),
            seed=spec.seed,
        )
        turn = 0
        while True:
            completion = await self.complete(replace(asked, turn=turn), is_action=False)
            try:
                return await policies.at(completion.versions[0])
            except PrunedError as error:
                # Newer weights were published since the engine answered: it has them soon.
                if turn == _MOST_PRUNED:
                    raise self._noted(error) from error.__cause__
                turn += 1
                await asyncio.sleep(_PRUNED_PAUSE_S)
            except Exception as error:
                raise self._noted(error) from error.__cause__

    async def complete(self, request: Request, *, is_action: bool = True) -> Completion:
        """Have an engine complete a request."""
        self._check_request(request)
        access = self._access
        self._is_asking = True
        try:
            await access.barrier.arrive(self._spec.id)
            completion = await access.engines.complete(request)
        except RequestError as error:
            raise self._fail("engine", error) from error
        except Exception as error:
            raise self._noted(error) from error.__cause__
        finally:
            self._is_asking = False
        self.served[access.engines.home(request.session)] += 1
        if is_action:
            self.note_action(completion.versions[0], cost=len(completion.tokens))
        return completion

    async def parse(self, text: str) -> str:
        """Return the action in a completion's text, by the user's parser if there is one."""
        parse = self._setup.parse
        if parse is None:
            return text.strip()
        try:
            return await self._slot.parse(parse, text, timeout_s=self._setup.timeouts.step_s)
        except UnreadableError as error:
            self._unread = error
            self.unread += 1
            return text
        except Exception as error:
            raise self._noted(error) from error.__cause__

    async def step(self, action: Any) -> StepOutcome:
        """Apply an action to the environment."""
        if self.turns > 1 and self._born is not None and not self._access.is_fresh(self._born):
            # Too old to train on: the Cancel that says so is on its way.
            await asyncio.Event().wait()
        try:
            await self._access.barrier.arrive(self._spec.id)
            outcome = self._refuse() or await self._slot.step(
                action, timeout_s=self._setup.timeouts.step_s
            )
        except Exception as error:
            raise self._noted(error) from error.__cause__
        is_over = outcome.terminated or outcome.truncated
        if is_over or asyncio.get_running_loop().time() < self._ends_s:
            return outcome
        self._is_out_of_time = True
        return replace(outcome, truncated=True)

    def _refuse(self) -> StepOutcome | None:
        """Return what a turn comes to that the parser could not read, if it was the last."""
        error, self._unread = self._unread, None
        if error is None:
            return None
        unread = self._setup.unread
        ends = error.is_env_lost or unread.then == "end"
        return StepOutcome(
            observation=f"Your answer could not be read: the parser {error}.",
            reward=unread.reward,
            terminated=ends,
            truncated=False,
            success=False if ends else None,
        )

    def note_action(self, version: Version, *, cost: int) -> None:
        """Count an action of the policy; `complete` does this by itself."""
        self.turns += 1
        self.cost += cost
        if self._born is None:
            self._born = version
            if self._on_birth is not None:
                self._on_birth(version)

    async def _play(self) -> Played:
        try:
            played = await self._setup.player.play(self)
        except Exception as error:
            self._raise_what_ends_the_run()
            below = next((each for each in self._failures if comes_from(error, each)), None)
            if below is not None:
                raise below from below.__cause__
            self._blame_player(error)
        self._raise_what_ends_the_run()
        return played

    def _raise_what_ends_the_run(self) -> None:
        """Raise what no player may hide: an engine that broke, or a bug below the player."""
        for failure in self._failures:
            if not isinstance(failure, AttemptError):
                raise failure from failure.__cause__

    def _blame_player(self, error: Exception) -> NoReturn:
        """Raise what an exception of the player's own code means."""
        match error:
            case EnvError():
                raise AttemptError("env_contract", f"{self._task_name}: {error}") from None
            case UserError() | InvariantError():
                # Raised on purpose (a tokenizer that does not fit the model): it ends the run.
                raise error
            case _:
                said = f"{describe_error(error)}{where_raised(error, self._setup.player)}"
                message = f"{self._task_name}: the player raised {said}"
                raise AttemptError("player", message) from error

    async def _reset(self) -> tuple[Any, dict[str, Json]]:
        task, timeouts = self._spec.task, self._setup.timeouts
        await self._slot.open(self._task_name, self._setup.make, timeout_s=timeouts.reset_s)
        observation, info = await self._slot.reset(
            task.seed, task.payload, timeout_s=timeouts.reset_s
        )
        self.opening = observation, info
        payload = None if self._setup.scoring == "env" else info.get("payload")
        if payload is not None and not isinstance(payload, dict):
            message = f"info['payload'] must be a dict; it is {payload!r}"
            raise AttemptError("env_contract", f"{self._task_name}: {message}")
        if payload:
            task = replace(task, payload={**task.payload, **payload})
            self._spec = replace(self._spec, task=task)
        return observation, info

    def _noted(self, error: Exception) -> Exception:
        """Note what was raised below the player, and return it."""
        self._failures.append(error)
        return error

    def _fail(self, kind: FailureKind, problem: object) -> AttemptError:
        failure = AttemptError(kind, f"{self._task_name}: {problem}")
        self._failures.append(failure)
        return failure

    def _check_request(self, request: Request) -> None:
        """Refuse what an engine would choke on, while the player can still be blamed for it."""
        if not isinstance(request, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
            problem = f"complete() takes a Request; it was given {request!r}"
        elif request.session != self._spec.id:
            own = self._spec.id
            problem = f"a request's session is the id of its attempt, {own}, not {request.session}"
        elif self._is_asking:
            problem = "an attempt asks one thing at a time: await complete() before the next one"
        else:
            return
        raise self._fail("player", problem)

    def _record(self, played: Played) -> Trajectory:
        spec, name = self._spec, self._task_name
        if not isinstance(played, Played):  # pyright: ignore[reportUnnecessaryIsInstance]
            message = f"{name}: the player must return a Played; it returned {played!r}"
            raise AttemptError("player", message)
        if self._born is None:
            message = f"{name}: the player ended the attempt without an action of the policy"
            raise AttemptError("player", f"{message}: await complete(), or call note_action()")
        return Trajectory(
            id=spec.id,
            group=spec.group,
            task=spec.task,
            stop="time_limit" if self._is_out_of_time else played.stop,
            success=played.success,
            reward=played.reward,
            born=self._born,
            cost=self.cost,
            payload=played.payload,
        )

    @property
    def _task_name(self) -> str:
        return self._spec.task.env


def comes_from(error: BaseException, failure: BaseException) -> bool:
    """Say whether an error is a failure, was raised from it, or is a group that holds it.

    Example:
        >>> comes_from(ExceptionGroup("two calls", [failure]), failure)
        True

    """
    if error is failure:
        return True
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    if error.__cause__ is not None:
        within = (*within, error.__cause__)
    return any(comes_from(each, failure) for each in within)
