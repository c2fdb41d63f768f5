"""The ports: what an adapter must offer, as Protocols.

Adapters never import each other nor control; drivers know only these. Each port has one contract
suite under `tests/`, run over every adapter. Arrays cross ports as `numpy.ndarray`, typed by the
buffer they are: no numpy is imported here.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rollart.types import (
    ArraySpec,
    AttemptSpec,
    Completion,
    Json,
    Message,
    Played,
    Program,
    ProgramLimits,
    ProgramResult,
    Request,
    ResidentPolicy,
    Reward,
    ScoreCall,
    StepOutcome,
    Trajectory,
    TrajectoryId,
    Version,
)

if TYPE_CHECKING:
    import numpy

    Array: TypeAlias = numpy.ndarray[Any, Any]
else:
    Array = object

StepResult: TypeAlias = "tuple[str, float, bool, bool, dict[str, Json]]"
"""observation, reward, terminated, truncated, info: Gymnasium's order."""


class Env(Protocol):
    """A world in text. Either method may be `async def`; the class takes its options by keyword.

    A class that takes a keyword `slot` receives the number of its environment slot.

    `info` may hold `actions` (a list of legal action texts, used by the random agent) and
    `success` (a bool; without it an episode succeeded if it terminated with rewards of sum > 0);
    that of `reset` also `payload`, what reward functions are to know of the task that was posed.
    Optional: `close()`; `suggest() -> str`, a good action now (a scripted player for warm
    starts); class attributes `system_prompt: str`, `inline: bool` (True: a step takes microseconds
    and never blocks, so it may run on the event loop instead of in a thread) and `arrays: bool`
    (True: a world of numbers; observations are numpy arrays, or dicts of them by name, and an
    action is whatever its player passes on).

    Example:
        class Echo:
            def reset(self, seed, task):
                self.letter = "abcd"[seed % 4]
                return f"say {self.letter}", {"actions": ["a", "b", "c", "d"]}

            def step(self, action):
                is_right = action == self.letter
                return "right" if is_right else "wrong", float(is_right), True, False, {}

    """

    def reset(
        self, seed: int, task: Mapping[str, Json]
    ) -> "tuple[str, dict[str, Json]] | Awaitable[tuple[str, dict[str, Json]]]":
        """Start an episode: the same seed and task give the same world."""
        ...

    def step(self, action: str) -> "StepResult | Awaitable[StepResult]":
        """Apply an action; an illegal one is answered in the observation, not raised."""
        ...


class Renderer(Protocol):
    """Turns messages into the token ids a chat model expects, piece by piece, never twice.

    Example:
        prompt = renderer.start(open_chat("You walk on ice.", "a1"))
        prompt += completion.tokens
        prompt += renderer.extend([Message.of("user", "a2")], closed=True)

    """

    @property
    def stop(self) -> tuple[int, ...]:
        """Token ids that end an assistant's turn."""
        ...

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids of the opening: the messages, then the assistant's cue."""
        ...

    def extend(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        """Return the ids that follow a completion: its closing, the messages, the cue.

        `closed` says that the completion ended with a stop token, which is then not repeated.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of sampled ids without special tokens."""
        ...


class AttemptContext(Protocol):
    """What a player may use during one attempt.

    Time limits, routing, the lock-step of mode `sync` and the report of failures are taken care
    of: a method raises when the attempt cannot continue, and the player does not catch that. An
    attempt has one request at a time, whose `session` is the attempt's id.

    Example:
        observation, info = await attempt.reset()
        prompt = attempt.renderer.start(open_chat(attempt.spec.system, observation))

    """

    @property
    def spec(self) -> AttemptSpec:
        """The attempt; after `reset` its task holds what the environment says of it."""
        ...

    @property
    def renderer(self) -> "Renderer":
        """Writes messages as the tokens the model reads."""
        ...

    async def reset(self) -> tuple[Any, dict[str, Json]]:
        """Start the episode: return the first observation and the environment's info."""
        ...

    async def policy(self) -> ResidentPolicy:
        """Return the policy that lives in this process, with the weights that engines serve now.

        For policies that act by themselves: the player calls it as often as it likes, without
        leaving the process, and counts each action with `note_action`.
        """
        ...

    async def complete(self, request: Request) -> Completion:
        """Have an engine complete a request of this attempt; counts as an action."""
        ...

    async def parse(self, text: str) -> str:
        """Return the action in a completion's text, by the user's parser if there is one."""
        ...

    async def step(self, action: Any) -> StepOutcome:
        """Apply an action to the environment."""
        ...

    def note_action(self, version: Version, *, cost: int) -> None:
        """Count an action of a policy that `complete` did not ask; `cost` is what it produced."""
        ...


class Player(Protocol):
    """Plays attempts: what the policy is asked, which actions are taken, what is recorded.

    The class is made once per kind of task, without arguments; `play` is called for many attempts
    at once, so an attempt's state is local to it. Choose one with `tasks.NAME.player`.

    An exception of the player's own fails its attempt alone, except a `rollart.errors.UserError`,
    which ends the run with its message.

    Example:
        class OneAnswer:
            async def play(self, attempt: AttemptContext) -> Played:
                observation, _ = await attempt.reset()
                ...
                return Played(payload=TokenTurns(turns=(turn,)), stop="terminated",
                              success=True, reward=1.0)

    """

    async def play(self, attempt: AttemptContext) -> Played:
        """Play one attempt to its end."""
        ...


class Engine(Protocol):
    """One inference replica, driven step by step by its owner; not thread-safe.

    A request is known by (session, turn). After `update` with `keep_kv=False`, cached keys and
    values are recomputed under the new weights; sampled tokens, log-probs and versions are kept
    and requests continue. With `keep_kv=True` requests that have sampled keep theirs until they
    end, and nothing else does. An update with nothing running leaves the engine as if newly made.

    Example:
        engine.add(Request(session=41, turn=0, tokens=(1, 17, 4), sampling=Sampling(), ...))
        while engine.busy:
            for completion in engine.step():
                print(completion.tokens, completion.logprobs, completion.versions)

    """

    @property
    def version(self) -> Version:
        """The version of the weights held."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        ...

    def add(self, request: Request) -> None:
        """Queue a request."""
        ...

    def abort(self, session: TrajectoryId) -> Completion | None:
        """Stop the session's request and return what it has (finish `abort`); None if idle."""
        ...

    def forget(self, session: TrajectoryId) -> None:
        """Drop the session's cached prefix: its trajectory ended."""
        ...

    def step(self) -> list[Completion]:
        """Run one prefill or decode step; return the requests it completed."""
        ...

    def update(self, version: Version, weights: Mapping[str, Array], *, keep_kv: bool) -> None:
        """Replace the weights (Hugging Face parameter names) between two steps."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Return counters since the start: prefill_tokens, reused_tokens, sampled_tokens, steps,
        recomputed_tokens.
        """
        ...


OnCut = Callable[[int], None]
"""Called with the number of tokens that an aborted request had sampled."""


class Generator(Protocol):
    """An engine as the rest of the program sees it: asynchronous, suspendable.

    Example:
        completion = await generator.generate(request)
        await generator.suspend()
        await generator.update(Version(4))
        await generator.resume()

    """

    async def generate(self, request: Request, on_cut: OnCut | None = None) -> Completion:
        """Complete one request; cancelling the await aborts it.

        `on_cut` then gets how many tokens it had sampled, when the engine knows. A completion
        with finish `abort` was given back by `evict`: another engine continues it.
        """
        ...

    async def suspend(self) -> None:
        """Take no further step; keep what is in flight."""
        ...

    async def update(self, version: Version) -> Mapping[str, float]:
        """Fetch and load published weights while suspended, unless they are held already.

        Return what it took: `pull_s`, of it `exposed_s` while the engine stood, and `load_s`.
        """
        ...

    async def resume(self) -> None:
        """Continue the requests that `suspend` stopped."""
        ...

    async def evict(self) -> None:
        """Suspend, and give every request back with what it has."""
        ...

    def forget(self, session: TrajectoryId) -> None:
        """Drop what is cached for a session that ended."""
        ...


class WeightStore(Protocol):
    """Versioned weights. A version is visible only whole: its manifest is written last.

    Example:
        store.publish(Version(3), {"model.norm.weight": numpy.ones(64, "float32")})
        store.latest()  # 3
        store.fetch(Version(3))["model.norm.weight"].shape  # (64,)

    """

    @property
    def place(self) -> str:
        """What and where it is, for messages."""
        ...

    def publish(self, version: Version, weights: Mapping[str, Array]) -> None:
        """Store a version and make it visible; older ones beyond the newest `keep` are pruned."""
        ...

    def stream(
        self,
        version: Version,
        specs: Mapping[str, ArraySpec],
        arrays: "Iterable[tuple[str, Array]]",
    ) -> None:
        """Publish a version whose arrays come one after another, in the order of `specs`.

        Each is let go before the next is asked for.
        """
        ...

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a visible version; raises KeyError if it is not (or no longer) there."""
        ...

    def latest(self) -> Version | None:
        """Return the newest visible version."""
        ...

    def close(self) -> None:
        """Release what the store holds."""
        ...


class Blobs(Protocol):
    """Named bytes somewhere: all that weights in buckets need of a file system or a network.

    A value is there whole or not at all. Keys are letters, digits, `.`, `-` and `_`; all but one
    are written once. Many read, one writes. What refuses raises StorageError.

    Example:
        blobs.put("v3-bucket-0", b"...")
        blobs.get("v3-bucket-0")  # b"..."
        blobs.delete("v3-bucket-0")
        blobs.get("v3-bucket-0")  # raises KeyError

    """

    @property
    def place(self) -> str:
        """What and where it is, for messages."""
        ...

    def put(self, key: str, data: "bytes | memoryview") -> None:
        """Store bytes under a key in place of what was there."""
        ...

    def get(self, key: str) -> "bytes | memoryview":
        """Return the bytes under a key; raises KeyError if there are none."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        ...

    def close(self) -> None:
        """Let go of the connection; what is stored stays."""
        ...


class RewardFunction(Protocol):
    """Scores one trajectory; options of the config come as keywords. May be `async def`.

    A function whose first parameter is called `trajectories` gets all attempts at a task and
    returns one score for each.

    Example:
        def shorter(trajectory: Trajectory, *, most: int = 20) -> float:
            return float(trajectory.cost <= most)

    """

    def __call__(
        self, trajectory: Trajectory, /, **options: Any
    ) -> "float | Reward | Awaitable[float | Reward]":
        """Return the score, or a Reward with its parts; raise ScoreError if there is none."""
        ...


class RewardInvoker(Protocol):
    """Runs reward functions somewhere: in processes here, behind a URL, on a cluster.

    A call is answered exactly once, however often it was delivered; what goes wrong is raised as
    `ScoreError` and is never a reward.

    Example:
        call = ScoreCall(function="exact", options={"key": "answer"}, trajectories=(trajectory,),
                         is_group=False, key="run-7/41")
        await invoker.invoke(call)  # (Reward(value=1.0),)

    """

    async def invoke(self, call: ScoreCall) -> tuple[Reward, ...]:
        """Score the call's trajectories: one reward for each, in order."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Return counters and gauges since the start, by metric name."""
        ...

    async def close(self) -> None:
        """End what was started; calls still waiting fail."""
        ...


class Conversation(Protocol):
    r"""The input and the output of a program that runs.

    Example:
        await conversation.send(b"6 * 7\n"), await conversation.read_line()  # None, b"42\n"

    """

    async def send(self, data: bytes) -> None:
        """Write to the program's input; does nothing after its end."""
        ...

    async def read_line(self) -> bytes:
        """Return the next line of its output; empty after its end or beyond the output limit."""
        ...


Talk: TypeAlias = Callable[[Conversation], Awaitable[None]]
"""What is said to a program while it runs; the program is killed when it returns."""


class Sandbox(Protocol):
    """Runs programs nobody trusts: no network, nothing of the host to read, limits on the rest.

    Example:
        result = await sandbox.run(Program(argv=("python3", "-c", "print(6 * 7, end='')")))
        result.end, result.exit_code, result.stdout  # "exited", 0, b"42"

    """

    @property
    def limits(self) -> ProgramLimits:
        """What a program may use where nobody says anything else."""
        ...

    async def run(
        self, program: Program, *, talk: Talk | None = None, is_trusted: bool = False
    ) -> ProgramResult:
        """Run a program to its end or its limits; cancelling the await kills it.

        `talk` replaces `stdin`, and its output is no part of the result. `is_trusted`: not written
        by a model, so it waits for no other program and may start processes.
        """
        ...

    def describe(self) -> Mapping[str, str]:
        """Return which mechanism enforces each limit: user, memory, cpu, processes and others."""
        ...

    async def close(self) -> None:
        """Kill what runs and remove what was made."""
        ...


class Handle(Protocol):
    """An actor somewhere: its methods are awaited the same way wherever it lives.

    Example:
        trainer = await host.spawn("my_trainer:Trainer", {"seed": 0}, own_process=True)
        await trainer.call("save", "runs/a/checkpoints/step-3")
        await trainer.close()

    """

    async def call(self, method: str, *args: object) -> Any:
        """Run a method of the actor and return its result."""
        ...

    async def close(self) -> None:
        """End the actor."""
        ...


class Host(Protocol):
    """Where actors are spawned: in this process, in one of their own, or on a cluster.

    Example:
        worker = await host.spawn("my_workers:Worker", {"slots": 8}, own_process=True, pool="cpus")

    """

    async def spawn(
        self, target: str, options: Mapping[str, Json], *, own_process: bool, pool: str = ""
    ) -> Handle:
        """Make the actor `module:Class` with keyword `options` (JSON values).

        `pool` names the hardware it belongs on, where the host has pools.
        """
        ...
