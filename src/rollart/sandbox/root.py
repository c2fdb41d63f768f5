"""The file system a sandbox sees: read-only directories of the host and one private /tmp.

The root holds /usr with its links, the interpreter's own directory, a generated /etc and a few
devices. Nothing else of the host is mounted, so nothing else can be read. A prepared root
(`build_root`) is a directory whose top directories join or replace these; it is built
once, mounted read-only and shared by all runs. It is named by a hash of its packages and moved into
place only when complete, so a root that exists is never half installed.
"""

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rollart.errors import ConfigError, SandboxError

PASSWD = b"root:x:0:0::/:/bin/false\nsandbox:x:65534:65534::/tmp:/bin/sh\n"
GROUP = b"root:x:0:\nsandbox:x:65534:\n"
HOSTS = b"127.0.0.1 localhost sandbox\n"
PRIVATE = ("dev", "proc", "sys", "tmp")
"""Top directories a prepared root cannot replace: a sandbox has its own, or none."""
DEVICES = ("null", "zero", "full", "random", "urandom")
PACKAGES = "/opt/packages"
"""Where a prepared root keeps Python packages; added to PYTHONPATH if it exists."""
RUNNER = Path(__file__).parent / "runner.py"
RUNNER_INSIDE = "/runner.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The directories and links a sandbox's file system consists of.

    Example:
        >>> Root(
        ...     python="/usr/bin/python3.11",
        ...     binds=(("/usr", "/usr"),),
        ...     links=(("usr/bin", "/bin"),),
        ...     hidden=("/usr/lib/python3.11/site-packages",),
        ...     has_etc=False,
        ...     has_packages=False,
        ... )

    """

    python: str
    """Path of the interpreter inside."""
    binds: tuple[tuple[str, str], ...]
    """Directories of the host, each with its path inside."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links: target, path inside."""
    hidden: tuple[str, ...]
    """Directories shown empty inside: the host's own Python packages."""
    has_etc: bool
    """Whether a prepared root has its own /etc, which replaces the generated one."""
    has_packages: bool
    """Whether a prepared root has Python packages to put on the module path."""

    def arguments(self) -> list[str]:
        """Return the bubblewrap arguments that build this file system."""
        arguments: list[str] = []
        for parent in self._parents():
            arguments += ["--perms", "0755", "--dir", parent]
        for source, seen in self.binds:
            arguments += ["--ro-bind", source, seen]
        for path in self.hidden:
            arguments += ["--tmpfs", path, "--remount-ro", path]
        for says, at in self.links:
            arguments += ["--symlink", says, at]
        for name in DEVICES:
            arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
        return arguments

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a program."""
        folder = str(Path(self.python).parent)
        paths = dict.fromkeys([folder, "/usr/local/bin", "/usr/bin", "/bin"])
        environment = {"PATH": ":".join(paths), "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
        if self.has_packages:
            environment["PYTHONPATH"] = PACKAGES
        return environment

    def _parents(self) -> list[str]:
        """Return the parents of all mounts: bubblewrap would create them closed to other users."""
        above = {str(parent) for _, seen in self.binds for parent in Path(seen).parents}
        return sorted((above | {"/etc", "/dev", "/opt"}) - {"/"})


def find_root(root: str, python: str) -> Root:
    """Return the file system made of this machine's directories and of the prepared `root`."""
    interpreter = Path(python or sys.executable)
    if not python:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        interpreter = Path(sys.base_prefix) / "bin" / version
    found = Path(root).iterdir() if root else ()
    prepared = {path.name: path for path in found if path.name not in PRIVATE}
    binds = {"/usr": "/usr"}
    tree = interpreter.resolve().parents[1]
    inside = root and (Path(root) / str(interpreter).lstrip("/")).exists()
    if not inside and not tree.is_relative_to("/usr"):
        if not interpreter.exists():
            raise ConfigError("sandbox.python", str(interpreter), "does not exist")
        binds[str(tree)] = str(tree)
        interpreter = tree / "bin" / interpreter.resolve().name
    binds |= {f"/{name}": str(path) for name, path in prepared.items() if path.is_dir()}
    if Path("/etc/ld.so.cache").exists() and "usr" not in prepared and "etc" not in prepared:
        binds["/etc/ld.so.cache"] = "/etc/ld.so.cache"
    links = [
        (str(path.readlink()), f"/{name}")
        for name in ("bin", "lib", "lib64", "lib32", "sbin")
        if name not in prepared and (path := Path("/", name)).is_symlink()
    ]
    binds |= {
        f"/{name}": f"/{name}"
        for name in ("bin", "lib", "lib64")
        if name not in prepared and Path("/", name).is_dir() and not Path("/", name).is_symlink()
    }
    return Root(
        python=str(interpreter),
        binds=tuple((source, seen) for seen, source in sorted(binds.items())),
        links=(*links, *DEVICE_LINKS),
        hidden=() if inside else tuple(map(str, tree.glob("lib/python3*/site-packages"))),
        has_etc="etc" in prepared,
        has_packages=(Path(root) / PACKAGES.lstrip("/")).is_dir() if root else False,
    )


DEVICE_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("/tmp", "/dev/shm"),  # noqa: S108
)


def build_root(packages: tuple[str, ...], *, store: Path, python: str = "") -> Path:
    """Return a root with these packages installed, building it only if `store` has none.

    `packages` are what pip takes: names with versions, or paths of wheels. A wheel is hashed by
    its content, anything else by its name.
    """
    interpreter = python or sys.executable
    identity = hashlib.sha256(str(Path(interpreter).resolve()).encode())
    for package in sorted(packages):
        path = Path(package)
        identity.update(
            hashlib.sha256(path.read_bytes() if path.is_file() else package.encode()).digest()
        )
    place = store / identity.hexdigest()[:16]
    if place.is_dir():
        return place
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store) as folder:
        made = Path(folder) / "root"
        target = made / PACKAGES.lstrip("/")
        target.mkdir(parents=True)
        command = [interpreter, "-m", "pip", "install", "--quiet", "--target", str(target)]
        command += ["--disable-pip-version-check"]
        done = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxError(f"pip could not install {', '.join(packages)}: {done.stderr}")
        try:
            made.rename(place)
        except OSError:
            # Another process may have put the same root there meanwhile; that one is as good.
            if not place.is_dir():
                raise
    return place
