"""Array steps: what a policy that acts on arrays saw and did.

For policies that are not language models, such as one that drives a robot from camera images. The
steps of an episode are stacked: row `n` of every array belongs to step `n`. Arrays are numpy's,
typed here by what is used of them, so that importing this module does not load numpy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from rollart.types.core import Version


@runtime_checkable
class ArrayValue(Protocol):
    """What this package asks of an array; `numpy.ndarray` has it.

    Example:
        numpy.zeros((5, 2), dtype="float32")

    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        ...

    @property
    def dtype(self) -> Any:
        """Type of one element; `dtype.str` writes it with its byte order."""
        ...

    def tobytes(self) -> bytes:
        """Return the elements as bytes, row by row."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """An array without its numbers.

    Example:
        ArraySpec(shape=(256, 64), dtype="<f4")

    """

    shape: tuple[int, ...]
    dtype: str
    """As numpy writes it, byte order included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArraySteps:
    """The payload of an attempt by a policy that acts on arrays.

    Example:
        ArraySteps(
            observations={"camera": numpy.zeros((2, 64, 64, 3), "uint8")},
            actions=numpy.array([[0.1, -0.3], [0.0, 0.2]], "float32"),
            logprobs=numpy.array([-1.2, -0.9], "float32"),
            rewards=(0.0, 1.0),
            versions=(Version(3), Version(3)),
        )

    """

    observations: Mapping[str, ArrayValue]
    """What the policy saw before each action, by name."""
    actions: ArrayValue
    logprobs: ArrayValue
    """Log-probability of each action under the distribution it was drawn from."""
    rewards: tuple[float, ...]
    """What the environment paid for each action."""
    versions: tuple[Version, ...]
    """The weights that chose each action."""
    latents: Mapping[str, ArrayValue] = field(default_factory=dict[str, ArrayValue])
    """What the trainer needs to compute the log-probabilities again, such as the noise that a
    flow policy started from."""
    kind: Literal["array_steps"] = "array_steps"
    """Names the payload in files and messages."""

    def __post_init__(self) -> None:
        for name, array in self.arrays().items():
            rows = array.shape[0] if array.shape else None
            if rows != len(self.rewards):
                raise ValueError(
                    f"{name} has {rows} rows for {len(self.rewards)} steps: stack one row a step"
                )
        if len(self.versions) != len(self.rewards):
            raise ValueError(f"{len(self.versions)} versions for {len(self.rewards)} steps")

    def __len__(self) -> int:
        return len(self.rewards)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArraySteps):
            return NotImplemented
        plain = self.rewards == other.rewards and self.versions == other.versions
        return plain and _contents(self) == _contents(other)

    def __hash__(self) -> int:
        return hash((self.rewards, self.versions))

    def arrays(self) -> dict[str, ArrayValue]:
        """Return every array by a name of its own, such as `observations.camera`."""
        return {
            **{f"observations.{name}": array for name, array in self.observations.items()},
            "actions": self.actions,
            "logprobs": self.logprobs,
            **{f"latents.{name}": array for name, array in self.latents.items()},
        }


def _contents(steps: ArraySteps) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    return {
        name: (tuple(array.shape), str(array.dtype), array.tobytes())
        for name, array in steps.arrays().items()
    }
