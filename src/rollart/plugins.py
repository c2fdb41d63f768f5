"""Plugins: the one place that turns a name in a config into an object.

A name is one of three things: a built-in (`BUILT_IN`), an entry point of an installed package
(groups `rollart.algorithms`, `rollart.engines`, … `rollart.stores`), or the user's own, written
`module:Class` or `path/to/file.py:Class`. Whatever goes wrong is one ConfigError with field, value
and fix. A file is run once however often it is named, and no thread sees half of one.

A run's directory that came from elsewhere may hold code and a config that names it. While it is
read, nothing inside it is imported unless the user trusts it (`distrusting`).

All strings that name modules of this package are here, so that a move is one edit.
"""

import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from zlib import crc32

from rollart.errors import ConfigError, UserError, describe_error

Kind = Literal["algorithm", "engine", "env", "pipeline", "player", "policy", "reward", "store"]
"""What can be added by one file and a name."""
Sort = Literal["object", "class", "function"]
"""What an object must be, to be used where a config names it."""

BUILT_IN: Mapping[Kind, Mapping[str, str]] = {
    "algorithm": {
        "grpo": "rollart.training.algorithms.grpo:Grpo",
        "dr_grpo": "rollart.training.algorithms.dr_grpo:DrGrpo",
        "rloo": "rollart.training.algorithms.rloo:Rloo",
        "reinforce": "rollart.training.algorithms.reinforce:Reinforce",
        "gspo": "rollart.training.algorithms.gspo:Gspo",
        "cispo": "rollart.training.algorithms.cispo:Cispo",
        "dapo": "rollart.training.algorithms.dapo:Dapo",
        "reinforce_plus_plus": "rollart.training.algorithms.reinforce_plus_plus:ReinforcePlusPlus",
        "reinforce_plus_plus_baseline": (
            "rollart.training.algorithms.reinforce_plus_plus_baseline:ReinforcePlusPlusBaseline"
        ),
        "lite_ppo": "rollart.training.algorithms.lite_ppo:LitePpo",
        "raft_plus_plus": "rollart.training.algorithms.raft_plus_plus:RaftPlusPlus",
        "opo": "rollart.training.algorithms.opo:Opo",
        "topr": "rollart.training.algorithms.topr:Topr",
        "sapo": "rollart.training.algorithms.sapo:Sapo",
        "gmpo": "rollart.training.algorithms.gmpo:Gmpo",
        "dppo": "rollart.training.algorithms.dppo:Dppo",
        "clip_cov": "rollart.training.algorithms.clip_cov:ClipCov",
        "kl_cov": "rollart.training.algorithms.kl_cov:KlCov",
        "opmd": "rollart.training.algorithms.opmd:Opmd",
        "max_rl": "rollart.training.algorithms.max_rl:MaxRl",
        "pass_at_k": "rollart.training.algorithms.pass_at_k:PassAtK",
        "turn_returns": "rollart.training.algorithms.turn_returns:TurnReturns",
        "gigpo": "rollart.training.algorithms.gigpo:Gigpo",
    },
    "engine": {
        "torch": "rollart.inference.torch.engine:TorchEngine",
        "scripted": "rollart.inference.scripted:ScriptedEngine",
    },
    "env": {
        "frozen_lake": "rollart.envs.frozen_lake:FrozenLake",
        "calculator": "rollart.envs.calculator:Calculator",
        "number_guess": "rollart.envs.number_guess:NumberGuess",
    },
    "reward": {
        "exact": "rollart.rewards.match:exact",
        "regex": "rollart.rewards.match:regex",
        "multiple_choice": "rollart.rewards.match:multiple_choice",
        "math": "rollart.rewards.mathematics:math",
        "unit_tests": "rollart.rewards.code:unit_tests",
        "stdin_stdout": "rollart.rewards.code:stdin_stdout",
        "instructions": "rollart.rewards.instructions:instructions",
        "format": "rollart.rewards.shaping:well_formed",
        "length": "rollart.rewards.shaping:length",
        "repetition": "rollart.rewards.shaping:repetition",
        "judge": "rollart.rewards.judge:judge",
        "pairwise": "rollart.rewards.judge:pairwise",
        "reward_model": "rollart.rewards.reward_model:reward_model",
        "weighted": "rollart.rewards.weighted:weighted",
        "weighted_group": "rollart.rewards.weighted:weighted_group",
    },
    "store": {
        "files": "rollart.weights.blobs.files:FileBlobs",
        "fsspec": "rollart.weights.blobs.fsspec_files:FsspecBlobs",
        "relay": "rollart.weights.blobs.relay:RelayBlobs",
        "mooncake": "rollart.weights.blobs.mooncake:MooncakeBlobs",
        "ray": "rollart.cluster.ray_blobs:RayBlobs",
    },
    "player": {"turns": "rollart.rollout.players.token_turns:TurnPlayer"},
    "pipeline": {
        "agentic": "rollart.pipelines.agentic:train",
        "imitation": "rollart.pipelines.imitation:train",
    },
    "policy": {"language": "rollart.models.options:LanguagePolicy"},
}
"""The objects this package ships, by kind and name; nothing is imported until it is asked for."""
ENGINE_ACTOR = "rollart.cluster.engine_actor:EngineActor"
ENV_ACTOR = "rollart.cluster.env_actor:EnvActor"
TRAINER = "rollart.training.trainer:TorchTrainer"
LANGUAGE_RUNTIME = "rollart.pipelines.language:LanguageRuntime"
STORE_OPENER = "rollart.weights.store:open_store"
LORA = "rollart.training.lora"
LOCAL_WORKER = "rollart.cluster.local_worker"
REWARD_INSTANCE = "rollart.rewards.invoke.instance"
HTTP_INVOKER = "rollart.rewards.invoke.http"
LAMBDA_INVOKER = "rollart.rewards.invoke.aws_lambda"
HARDWARE_TABLES = "rollart.hardware"
COMMAND_PACKAGE = "rollart.cli"
_NOUNS: Mapping[Kind, str] = {
    "algorithm": "algorithm",
    "engine": "engine",
    "env": "environment",
    "pipeline": "pipeline",
    "player": "player",
    "policy": "kind of policy",
    "reward": "reward function",
    "store": "weight store",
}
"""What each kind is called in messages."""
EXTRAS = {"math_verify": "math", "httpx": "rewards", "transformers": "train", "torch": "train"}
"""Which extra brings a package that what is shipped needs."""
_SORTS: Mapping[Sort, tuple[Callable[[Any], bool], Callable[[Any], bool], str]] = {
    "object": (lambda found: found is not None, lambda _: False, ""),
    "class": (inspect.isclass, inspect.isclass, "class "),
    "function": (callable, inspect.isfunction, "function "),
}
"""By sort: what an object must satisfy, which ones an error lists, and what it calls them."""
_FILE_PREFIX = "rollart_file_"
"""What the modules of files named by their path are called, before the file's own name."""
_files_being_run: list[Path] = []
_distrusted: list[Path] = []
"""Directories from which nothing may be imported now."""
_left_out: list[str] = []
"""Paths that were not added to `sys.path` because they are in such a directory."""
_running = threading.RLock()
"""Held while a file is run."""


def resolve(kind: Kind, name: str) -> str:
    """Return what a name stands for as `module:Class`; the name itself if nothing is known.

    Example:
        >>> resolve("env", "frozen_lake")
        'rollart.envs.frozen_lake:FrozenLake'

    """
    built_in = BUILT_IN[kind]
    if name in built_in or split_name(name):
        return built_in.get(name, name)
    for entry in _installed(kind):
        if entry.name == name:
            return entry.value
    return name


def known_names(kind: Kind) -> tuple[str, ...]:
    """Return the names of a kind: the built-in ones, then those of installed packages."""
    installed = (entry.name for entry in _installed(kind))
    return tuple(dict.fromkeys((*BUILT_IN[kind], *installed)))


def added_commands() -> dict[str, str]:
    """Return the commands that installed packages add, and the module of each."""
    return {entry.name: entry.value for entry in entry_points(group="rollart.commands")}


def _installed(kind: Kind) -> Iterable[EntryPoint]:
    """Return the entry points of a kind."""
    return entry_points(group="rollart.policies" if kind == "policy" else f"rollart.{kind}s")


def find(
    kind: Kind,
    name: str,
    *,
    field: str,
    what: Sort = "object",
    is_offered: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the object called `name`; `what` and `is_offered` are those of `load_object`.

    Example:
        >>> find("env", "frozen_lake", field="tasks.lake.env")
        <class 'rollart.envs.frozen_lake.FrozenLake'>

    """
    target = resolve(kind, name)
    if split_name(target) is None:
        raise ConfigError(field, name, describe_unknown(kind, name))
    return load_object(target, field=field, value=name, what=what, is_offered=is_offered)


def load_object(
    target: str,
    *,
    field: str,
    value: object = None,
    what: Sort = "object",
    is_offered: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the object, class or function (any callable) written `module:name`.

    `value` is what the field says, if that is not the target. Where there is no such object, the
    error lists those of the module that `is_offered` accepts (by default all of the same sort).

    Example:
        >>> load_object("my_parsers.py:last_word", field="tasks.lake.parser", what="function")
        <function last_word at 0x7f2a1c0>

    """
    shown = target if value is None else value
    names = split_name(target)
    if names is None:
        raise ConfigError(field, shown, f"write it as module:{what} or path/to/file.py:{what}")
    module_name, wanted = names
    module = load_module(module_name, field=field, value=shown)
    found = getattr(module, wanted, None)
    fits, offers, label = _SORTS[what]
    if fits(found):
        return found
    offers = is_offered or offers
    offered = [each for each, it in vars(module).items() if each[0] != "_" and offers(it)]
    near = f"; it has {', '.join(offered)}" if offered else ""
    raise ConfigError(field, shown, f"{module_name} has no {label}{wanted}{near}")


def name_of(kind: Kind, found: type) -> str:
    """Return the name under which `find` finds a class, in any process.

    Example:
        >>> name_of("env", FrozenLake)
        'frozen_lake'
        >>> name_of("algorithm", Toy)  # the class of a file that was named by its path
        '/home/me/toy.py:Toy'

    """
    target = f"{found.__module__}:{found.__qualname__}"
    shipped = next((name for name, value in BUILT_IN[kind].items() if value == target), None)
    if shipped is not None:
        return shipped
    for entry in _installed(kind):
        if entry.value == target:
            return entry.name
    file = getattr(sys.modules.get(found.__module__), "__file__", None)
    is_file = found.__module__ == "__main__" or found.__module__.startswith(_FILE_PREFIX)
    return f"{Path(file).resolve()}:{found.__qualname__}" if file and is_file else target


def add_paths(directories: Iterable[str]) -> None:
    """Let modules in these directories be imported by name, the first one first."""
    for directory in reversed(trusted_paths(directories)):
        if directory not in sys.path:
            sys.path.insert(0, directory)


def trusted_paths(directories: Iterable[str]) -> tuple[str, ...]:
    """Return the directories from which modules may be imported now."""
    given = tuple(directories)
    _left_out.extend(each for each in given if is_distrusted(Path(each)))
    return tuple(each for each in given if not is_distrusted(Path(each)))


@contextmanager
def distrusting(directory: Path) -> Generator[None]:
    """Import nothing that is inside a directory until the block ends.

    Example:
        >>> with distrusting(Path("downloads/run")):
        ...     load_object("downloads/run/env.py:Env", field="tasks.lake.env")
        ConfigError: tasks.lake.env = 'downloads/run/env.py:Env': … look at it, then add --trust …

    """
    _distrusted.append(directory.resolve())
    inside = [each for each in sys.path if is_distrusted(Path(each))]
    _left_out.extend(inside)
    sys.path[:] = [each for each in sys.path if each not in inside]
    try:
        yield
    finally:
        _distrusted.remove(directory.resolve())
        _left_out.clear()
        sys.path[:0] = inside


def is_distrusted(path: Path) -> bool:
    """Say whether a path is inside a directory from which nothing may be imported now."""
    resolved = path.expanduser().resolve() if _distrusted else path
    return any(resolved.is_relative_to(each) for each in _distrusted)


def _refuse_distrusted(module: str, field: str, shown: object) -> None:
    """Refuse a module or file that is inside such a directory, without importing anything."""
    if not _distrusted:
        return
    if module.endswith(".py"):
        found = Path(module) if is_distrusted(Path(module)) else None
    else:
        top = module.partition(".")[0]
        spec = PathFinder.find_spec(top, [each or "." for each in _left_out])
        found = None if spec is None or _is_findable(top) else spec.origin or top
    if found is not None:
        raise ConfigError(
            field,
            shown,
            f"{found} is code inside {_distrusted[-1]}, which reading that directory would run: "
            "look at it, then add --trust (in Python: trust=True)",
        )


def _is_findable(top: str) -> bool:
    """Say whether a module would be found without what was left out."""
    return top in sys.modules or PathFinder.find_spec(top) is not None


def check_name(kind: Kind, name: str, *, field: str, more: tuple[str, ...] = ()) -> None:
    """Refuse a name that is nothing at all, without importing what it stands for.

    `more` are names that are known where the field is read, and not here.

    Example:
        >>> check_name("engine", "torhc", field="engine.name")
        ConfigError: engine.name = 'torhc': no such engine; did you mean torch? Shipped: torch, …

    """
    names = split_name(resolve(kind, name))
    if name not in more and names is None:
        raise ConfigError(field, name, describe_unknown(kind, name, more=more))
    if names is not None:
        _refuse_distrusted(names[0], field, name)


def describe_unknown(kind: Kind, name: str, *, more: tuple[str, ...] = ()) -> str:
    """Say that a name is not known, which was probably meant, and which there are.

    Example:
        >>> describe_unknown("player", "trun")
        'no such player; did you mean turns? Shipped: turns; or name your own as module:Class or …'

    """
    known = (*more, *known_names(kind))
    near = get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]}? Shipped" if near else "shipped"
    own = "function" if kind == "reward" else "Class"
    return (
        f"no such {_NOUNS[kind]}; {guess}: {', '.join(known)}; "
        f"or name your own as module:{own} or path/to/file.py:{own}"
    )


def describe_unread(kind: Kind, cls: type, key: str) -> str:
    """Say that a class does not read a key which others of its kind read; empty if none does.

    Example:
        >>> describe_unread("algorithm", Grpo, "tau_positive")
        'algorithm "grpo" does not read it; these do: sapo'

    """
    classes = {name: find(kind, name, field=key) for name in BUILT_IN[kind]}
    names = {name: {each.name for each in fields(found)} for name, found in classes.items()}
    readers = ", ".join(name for name, keys in names.items() if key in keys)
    unread = f'{_NOUNS[kind]} "{name_of(kind, cls)}" does not read it; these do: {readers}'
    return unread if readers else ""


def split_name(name: str) -> tuple[str, str] | None:
    """Return module (or file) and what is wanted of it; None if `name` is not written that way."""
    module, colon, wanted = name.rpartition(":")
    return (module, wanted) if colon and module and wanted else None


def load_module(name: str, *, field: str, value: object = None) -> ModuleType:
    """Import a module by its name, or a file if that ends in .py.

    `value` is what the field says, if that is more than the name.
    """
    shown = name if value is None else value
    _refuse_distrusted(name, field, shown)
    if not name.endswith(".py"):
        return _load_named(name, field, shown)
    with _running:
        return _load_file(name, field, shown)


def _load_named(name: str, field: str, shown: object) -> ModuleType:
    if name not in sys.modules:
        here = str(Path.cwd())
        if here not in sys.path and not is_distrusted(Path(here)):
            sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            fix = f"no module {name} here or installed; for a file write path/to/file.py:…"
            raise ConfigError(field, shown, fix) from None
        raise ConfigError(field, shown, _broken(name, error)) from error
    except Exception as error:
        raise ConfigError(field, shown, _broken(name, error)) from error


def _load_file(name: str, field: str, shown: object) -> ModuleType:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(field, shown, f"there is no file {path}")
    key = f"{_FILE_PREFIX}{path.stem}_{crc32(str(path).encode()):x}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    _files_being_run.append(path)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        raise ConfigError(field, shown, _broken(str(path), error)) from error
    finally:
        _files_being_run.pop()
    return module


def refuse_inside_import(what: str) -> None:
    """Refuse to start something while a user's file is being imported for an object in it.

    A script that trains at its top level would otherwise train again in every process that loads
    its classes.
    """
    if _files_being_run:
        raise UserError(
            f"{_files_being_run[-1]}: rollart.{what} was called while the file was imported for an "
            'object in it: put the call under if __name__ == "__main__":'
        )


def _broken(name: str, error: Exception) -> str:
    extra = EXTRAS.get(getattr(error, "name", None) or "")
    hint = f": install rollart[{extra}]" if extra else ""
    return f"importing {name} failed: {describe_error(error)}{hint}"


def load_checkout(name: str) -> ModuleType:
    """Import a module of the source checkout that the package leaves out, as `studies.scale`.

    Example:
        >>> load_checkout("studies.scale").run  # in a checkout

    """
    folder = name.partition(".")[0]
    root = find_checkout(folder)
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return importlib.import_module(name)


def find_checkout(folder: str) -> Path:
    """Return the checkout that has `folder`: around the package, or the current directory."""
    for root in (Path(__file__).parents[2], Path.cwd()):
        if any((root / folder).glob("[a-z]*.py")):
            return root
    raise UserError(
        f"no {folder} here: they come with the source checkout, not with the package; "
        "run this in the checkout's directory"
    )


def import_name(found: Any, *, field: str) -> str:
    """Return the `module:Class` that names a class or function, so that a config can hold it.

    One of a notebook or script is `__main__:Class`: this process alone can find it.

    Example:
        >>> import_name(FrozenLake, field="tasks.lake.env")
        'rollart.envs.frozen_lake:FrozenLake'

    """
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        fix = f"give the class or function itself, not an object made of it: {type(found).__name__}"
        raise ConfigError(field, type(found).__name__, fix)
    module, name = found.__module__, found.__qualname__
    if getattr(sys.modules.get(module), name, None) is not found:
        fix = f"define {found.__name__} at the top level of a module, script or notebook"
        if module == "__main__" and name == found.__name__:
            # The asyncio REPL runs what is typed in a namespace that is not the module __main__.
            fix = (
                f"this interpreter does not keep {name} in the module __main__, as python, IPython "
                f"and Jupyter do: write {name} to a file, e.g. mine.py, and import it from there"
            )
        raise ConfigError(field, f"{module}:{name}", fix)
    return f"{module}:{name}"
