"""Every error the project raises, as one tree.

    RollartError
    ├── UserError            the user can fix it: printed as one message, no traceback, exit 2
    │   ├── ConfigError      a config field: names the field, the value and the fix
    │   ├── ModelError       a model, tokenizer or checkpoint that cannot be used
    │   │   └── DamagedError     a checkpoint that is not whole: another one may be
    │   ├── PlacementError   a worker that no pool can take
    │   ├── ClusterError     the cluster under a run is gone, and with it all that is not on disk
    │   ├── EngineError      an engine that broke, out of memory for one; the trainer is well
    │   ├── GroupError       one of several workers that need each other failed, and all were ended
    │   ├── ActorDiedError   the process of an actor ended by itself (an ActorError too)
    │   └── StorageError     a disk or directory that refuses
    │       ├── PrunedError      weights that were asked for too late: newer ones are there
    │       └── CorruptError     weights that are not what was stored: no use to read them again
    ├── ActorError           an actor raised an error of another kind, or was closed before the call
    ├── EnvError             an environment broke its contract or died; becomes data on a trajectory
    ├── AttemptError         an attempt that cannot go on (`runtime.attempt_error`); becomes data
    ├── ScoreError           a reward function or what runs it failed; never a score
    ├── SandboxError         a sandbox could not be had; says nothing about the program
    └── InvariantError       the program is wrong: a crash

A failed trajectory is data (`types.Failure`), not an exception that travels.
"""

_TOLD = 300
"""Most characters that are told of an exception that is not ours."""


class RollartError(Exception):
    """The root of the tree.

    Example:
        try:
            rollart.train("my.toml")
        except rollart.RollartError as error:
            print(error)

    """


class UserError(RollartError):
    """A mistake the user can fix; the message says how."""


class ConfigError(UserError):
    """A config field with a wrong value, or, where that is None, with none.

    Example:
        ConfigError("run.steps", 0, "must be at least 1")  # run.steps = 0: must be at least 1

    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field = field
        self.value = value
        self.fix = fix
        written = field if value is None else f"{field} = {value!r}"
        super().__init__(f"{written}: {fix}")


class ModelError(UserError):
    """A model, tokenizer or checkpoint that cannot be used."""


class DamagedError(ModelError):
    """A checkpoint that is not whole: a run may go on from another."""


class PlacementError(UserError):
    """A worker that no pool can take: the message says what it needs and what there is."""


class ClusterError(UserError):
    """The cluster under a run is gone: nothing can be saved any more."""


class EngineError(UserError):
    """An engine broke while it computed: the run cannot go on, what was trained can be saved."""


class GroupError(UserError):
    """Workers that need each other were ended because one failed: made again, they may go on."""


class ActorError(RollartError):
    """An actor raised something outside this tree, or was closed before it was called."""


class ActorDiedError(ActorError, UserError):
    """The process of an actor ended by itself: killed from outside, or out of memory."""


class StorageError(UserError):
    """A disk or directory that refuses what a run needs of it."""


class PrunedError(StorageError):
    """Weights that are stored no longer because newer ones are: those can be had."""


class CorruptError(StorageError):
    """Weights whose checksum is not the one they were stored with, each time they are read."""


class EnvError(RollartError):
    """An environment broke its contract: the message says what it returned and what is wanted."""


class ScoreError(RollartError):
    """A reward could not be had: the message says why, `is_final` whether asking again is vain,
    `is_own` whether the function itself raised, so that what runs it is well.
    """

    def __init__(self, message: str, *, is_final: bool = False, is_own: bool = False) -> None:
        self.is_final = is_final
        self.is_own = is_own
        super().__init__(message)


class SandboxError(RollartError):
    """A sandbox could not start or was lost: the message says why; the program is not to blame."""


class InvariantError(RollartError):
    """A broken invariant: the program, not the user, is wrong."""


def describe_error(error: BaseException) -> str:
    """Return an exception's name and text as one line of a length that can be read."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "its text cannot be had"
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return told if len(told) <= _TOLD else told[: _TOLD - 1] + "…"
