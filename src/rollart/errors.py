"""Every error the project raises, as one tree.

    RollartError
    ├── UserError            the user can fix it: printed as one message, no traceback, exit 2
    │   ├── ConfigError      a config field: names the field, the value and the fix
    │   ├── ModelError       a model, tokenizer or checkpoint that cannot be used
    │   │   └── DamagedError     an incomplete checkpoint; an older one may be complete
    │   ├── PlacementError   a worker that no pool has room for
    │   ├── ClusterError     the cluster was lost, with everything that was not saved to disk
    │   ├── EngineError      an engine failed (e.g. out of memory); the trainer still works
    │   ├── GuardError       engine and trainer disagree on the tokens they share
    │   ├── GroupError       one worker of a group failed, so the whole group was stopped
    │   ├── ActorDiedError   the process of an actor ended by itself (an ActorError too)
    │   └── StorageError     a disk or directory that cannot be read or written
    │       ├── PrunedError      weights that were deleted because newer ones exist
    │       └── CorruptError     weights whose checksum is wrong; reading again cannot help
    ├── ActorError           an actor raised an error of another kind, or was closed before the call
    ├── EnvError             an environment broke its contract or died; becomes data on a trajectory
    ├── AttemptError         an attempt that cannot continue; becomes data on a trajectory
    ├── ScoreError           a reward function, or the process that runs it, failed; never a score
    ├── SandboxError         a sandbox failed; says nothing about the program
    └── InvariantError       a bug in this project: a crash

A failed trajectory is data (`types.Failure`), not an exception that travels.
"""

import re

_MOST_CHARACTERS = 300
"""Longest description of an exception that is not ours."""


class RollartError(Exception):
    """The base of all errors of this project.

    Example:
        try:
            rollart.train("my.toml")
        except rollart.RollartError as error:
            print(error)

    """


class UserError(RollartError):
    """A mistake the user can fix; the message says how."""


class ConfigError(UserError):
    """A config field with a wrong value, or a missing one if `value` is None.

    Example:
        >>> str(ConfigError("run.steps", 0, "must be at least 1"))
        'run.steps = 0: must be at least 1'

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
    """An incomplete or damaged checkpoint; a run may resume from another one."""


class PlacementError(UserError):
    """A worker that fits no pool: the message says what it needs and what is available."""


class ClusterError(UserError):
    """The cluster of a run was lost: nothing more can be saved."""


class EngineError(UserError):
    """An engine failed while computing: the run ends, but the trained weights can be saved."""


class GuardError(UserError):
    """Engine and trainer disagree on the log-probs of the same tokens: training would be biased."""


class GroupError(UserError):
    """A group of workers was stopped because one failed: a restart may fix it."""


class ActorError(RollartError):
    """An actor raised something outside this tree, or was closed before it was called."""


class ActorDiedError(ActorError, UserError):
    """The process of an actor ended by itself: killed from outside, or out of memory."""


class StorageError(UserError):
    """A disk or directory that a run cannot read or write."""


class PrunedError(StorageError):
    """Weights that were deleted because newer ones are stored: read those instead."""


class CorruptError(StorageError):
    """Weights whose checksum is wrong each time they are read."""


class EnvError(RollartError):
    """An environment broke its contract: the message says what it returned and what it should."""


class ScoreError(RollartError):
    """Scoring failed.

    `is_final`: retrying cannot help. `is_own`: the reward function itself raised, so the process
    that runs it still works.

    Example:
        >>> ScoreError("math: KeyError: 'answer'", is_final=True, is_own=True)

    """

    def __init__(self, message: str, *, is_final: bool = False, is_own: bool = False) -> None:
        self.is_final = is_final
        self.is_own = is_own
        super().__init__(message)


class SandboxError(RollartError):
    """A sandbox did not start or died: the message says why; it is not the program's fault."""


class InvariantError(RollartError):
    """A broken invariant: a bug in this project, not a mistake of the user."""


def describe_error(error: BaseException) -> str:
    """Return an exception's name and text as one line of at most 300 characters."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        # `__str__` of a user's exception may itself raise; that must not hide the first error.
        text = "its text cannot be read"
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 1] + "…"


def printable(text: str) -> str:
    r"""Return a text with its control characters written out, as a terminal may be shown it.

    What models, environments and other machines say ends up in messages; escape sequences in it
    could rewrite the screen or the terminal's title. New lines and tabs stay.

    Example:
        >>> printable("done \x1b[2J\rfake")
        'done \\x1b[2J\\x0dfake'

    """
    return text if text.isprintable() else _CONTROL.sub(_write_out, text)


def _write_out(found: "re.Match[str]") -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of text or break lines unseen."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text; other libraries' errors often have many."""
    return str(error).strip().split("\n", 1)[0]
