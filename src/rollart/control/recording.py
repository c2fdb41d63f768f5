"""Recording: the rules of a run as a log's header keeps them, and back.

What comes back decides as the run did: the rules whole, and the domain of every task, where the
rules look at it.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollart.control.batching import Batching
from rollart.control.dispatch import Dispatch, DomainOf, one_domain
from rollart.control.filters import Filter
from rollart.control.lending import Lending
from rollart.control.modes import mode_named
from rollart.control.redundancy import Redundancy
from rollart.control.retry import Retry
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.control.syncing import Syncing
from rollart.control.tasks import TaskKind, TaskMix
from rollart.types import Json

_SECTIONS: dict[str, Any] = {
    "batching": Batching,
    "staleness": Staleness,
    "redundancy": Redundancy,
    "retry": Retry,
    "filter": Filter,
    "syncing": Syncing,
    "dispatch": Dispatch,
    "lending": Lending,
}


def encode_rules(rules: Rules, tasks: TaskMix | None = None) -> dict[str, Json]:
    """Return the rules, and the stream whose domains they look at, as a log's header keeps them."""
    sections = {name: asdict(getattr(rules, name)) for name in _SECTIONS}
    encoded: dict[str, Json] = {"steps": rules.steps, "mode": rules.mode.name, **sections}
    if tasks is not None:
        kinds: list[Json] = [asdict(kind) for kind in tasks.kinds]
        encoded["tasks"] = {"seed": tasks.seed, "kinds": kinds}
    return encoded


def decode_rules(encoded: Mapping[str, Any], *, seed: int) -> Rules:
    """Return the rules that were encoded."""
    sections = {name: cls(**encoded[name]) for name, cls in _SECTIONS.items()}
    return Rules(steps=encoded["steps"], seed=seed, mode=mode_named(encoded["mode"]), **sections)


def decode_tasks(encoded: Mapping[str, Any]) -> TaskMix | None:
    """Return the stream that was encoded with the rules, if one was."""
    tasks = encoded.get("tasks")
    if tasks is None:
        return None
    kinds = [TaskKind(**kind) for kind in tasks["kinds"]]
    return TaskMix(kinds, seed=tasks["seed"])


def decode_domains(encoded: Mapping[str, Any]) -> DomainOf:
    """Return the domains of the stream that was encoded with the rules."""
    tasks = decode_tasks(encoded)
    return one_domain if tasks is None else tasks.domain
