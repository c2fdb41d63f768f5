"""Check the documents: links lead somewhere, commands exist, the README is short.

Every relative link of a Markdown file must name a file, and its #anchor a heading of it. Every
`rollart …` line of a code block must parse as a command line; every `make TARGET` must exist.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from rollart.cli.parser import parse
from rollart.errors import UserError

ROOT = Path(__file__).parent.parent
README_LINES = 150


def main() -> int:
    """Check everything; print each fault with its place."""
    faults: list[str] = []
    readme = ROOT / "README.md"
    count = len(readme.read_text(encoding="utf-8").splitlines()) if readme.exists() else 0
    if not 0 < count <= README_LINES:
        faults.append(f"README.md: {count} lines; it has 1 to {README_LINES}")
    for path in documents():
        faults += check_links(path)
        faults += check_commands(path)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults) or "documents are in order\n")
    return 1 if faults else 0


def documents() -> list[Path]:
    """List the Markdown files of the project."""
    found = [*ROOT.glob("*.md")]
    for folder in ("docs", "examples", "benchmarks"):
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def check_links(path: Path) -> Iterator[str]:
    """Yield the links of a document that lead nowhere."""
    text = without_code(path.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), start=1):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name) if name else path
            where = f"{path.relative_to(ROOT)}:{number}"
            if not file.exists():
                yield f"{where}: link to {target}: no such file"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield f"{where}: link to {target}: no such heading"


def check_commands(path: Path) -> Iterator[str]:
    """Yield the commands of a document that do not exist."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for number, line in code_lines(path.read_text(encoding="utf-8")):
        where = f"{path.relative_to(ROOT)}:{number}"
        found = re.match(r"\s*\$?\s*make ([\w-]+)", line)
        if found and found[1] not in targets:
            yield f"{where}: make {found[1]}: no such target"
        found = re.match(r"\s*\$?\s*rollart\s+(.+)", line)
        if found and (fault := parse_fault(found[1])):
            yield f"{where}: rollart {found[1]}: {fault}"


def parse_fault(command: str) -> str | None:
    """Return what is wrong with a command line, None if nothing is."""
    words = shlex.split(command, comments=True)
    try:
        parse([word for word in words if word not in ("…", "...", "[key=value", "…]")])
    except UserError as error:
        return str(error).partition("\n")[0]
    except SystemExit:
        return None
    return None


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines within ``` fences."""
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside:
            yield number, line


def without_code(text: str) -> str:
    """Blank out code, keeping line numbers."""
    blanked = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", blanked)


def anchors(path: Path) -> set[str]:
    """Return the anchors a forge gives a document's headings."""
    headings = re.findall(r"^#+\s+(.+?)\s*$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


if __name__ == "__main__":
    sys.exit(main())
