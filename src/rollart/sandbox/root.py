"""What a sandbox sees of the file system: a root of read-only trees and one private place.

The root holds /usr with its links, the interpreter's own tree, a made-up /etc and a few devices.
Nothing else of the host is there to be read. A prepared root (`build_root`) is a directory whose
top directories join or replace these; it is made once, bound read-only and shared by all runs.
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
"""Top directories that no prepared root may bring: a sandbox has its own, or none."""
DEVICES = ("null", "zero", "full", "random", "urandom")
PACKAGES = "/opt/packages"
"""Where a prepared root keeps Python packages; it is on the module path if it is there."""
RUNNER = Path(__file__).parent / "runner.py"
RUNNER_INSIDE = "/runner.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The trees a sandbox is made of."""

    python: str
    """The interpreter, as seen inside."""
    binds: tuple[tuple[str, str], ...]
    """Trees of the host and where they are seen."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links: what they say, where they are."""
    hidden: tuple[str, ...]
    """Directories inside those trees that are seen empty: the host's own Python packages."""
    has_etc: bool
    """Whether a prepared root brings its own /etc, in place of the made-up one."""
    has_packages: bool

    def arguments(self) -> list[str]:
        """Return bubblewrap's arguments that lay the root out."""
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
        """Return the environment of a program."""
        folder = str(Path(self.python).parent)
        paths = dict.fromkeys([folder, "/usr/local/bin", "/usr/bin", "/bin"])
        environment = {"PATH": ":".join(paths), "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
        if self.has_packages:
            environment["PYTHONPATH"] = PACKAGES
        return environment

    def _parents(self) -> list[str]:
        """Return the directories above what is bound, so that any user may pass through."""
        above = {str(parent) for _, seen in self.binds for parent in Path(seen).parents}
        return sorted((above | {"/etc", "/dev", "/opt"}) - {"/"})


def find_root(root: str, python: str) -> Root:
    """Return the root made of this machine's trees and, where given, of a prepared one's."""
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
            raise ConfigError("sandbox.python", str(interpreter), "is not there")
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
    """Return a root with these packages installed: the stored one if there is one.

    `packages` are what pip takes: names with versions, or paths of wheels. A snapshot is found by
    the hash of these (of a wheel, its content) and of the interpreter's path; it is written beside
    its place and moved there whole.
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
            if not place.is_dir():
                raise
    return place
