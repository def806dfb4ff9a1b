#!/usr/bin/env python3
"""Counts the lines of Rust code, without blank lines, comments and tests.

    scripts/code-lines.py               counts the parts of `resources`, and every crate
    scripts/code-lines.py DIR_OR_FILE…  counts only these

Tests are files named `tests.rs`, `models.rs`, `modelled.rs` or `*_tests.rs`, files below a folder `tests`,
modules declared under `#[cfg(test)]`, and items under `#[cfg(test)]`.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST_FILE = re.compile(r"(^|/)tests/|(^|/)(tests|models|modelled)\.rs$|_tests\.rs$")
# A parent names the modules that exist only in test builds: `#[cfg(test)] mod replay;`.
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod (\w+);")
# The folders of the pool.
POOL = ["pool", "store", "heap", "block_map", "stream_order", "sync"]


def rust_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    return sorted(path for path in root.rglob("*.rs") if "target" not in path.parts)


def test_modules(files: list[Path]) -> set[Path]:
    modules = set()
    for path in files:
        folder = path.parent if path.name in ("mod.rs", "lib.rs", "main.rs") else path.with_suffix("")
        for name in TEST_MODULE.findall(path.read_text()):
            modules |= {folder / f"{name}.rs", folder / name / "mod.rs"}
    return modules


def code_lines(path: Path) -> int:
    """Counts the lines of one file. An item under `#[cfg(test)]` ends with the brace below its first line."""
    lines = path.read_text().splitlines()
    count, at = 0, 0
    while at < len(lines):
        text = lines[at].strip()
        if text.startswith(("#[cfg(test)]", "#[cfg(all(test")):
            at += 1
            while lines[at].strip().startswith("#["):
                at += 1
            indent = len(lines[at]) - len(lines[at].lstrip())
            while not lines[at].rstrip().endswith(";") and lines[at].rstrip() != " " * indent + "}":
                at += 1
                if len(lines[at]) - len(lines[at].lstrip()) > indent:
                    while lines[at].rstrip() != " " * indent + "}":
                        at += 1
        elif text and not text.startswith("//"):
            count += 1
        at += 1
    return count


def total(*roots: Path) -> int:
    files = [path for root in roots for path in rust_files(root)]
    tests = test_modules(files)
    code = (path for path in files if path not in tests and not TEST_FILE.search(path.as_posix()))
    return sum(code_lines(path) for path in code)


def main() -> None:
    if len(sys.argv) > 1:
        for name in sys.argv[1:]:
            print(f"{total(Path(name).resolve()):7}  {name}")
        return
    resources = ROOT / "resources" / "src"
    for part in POOL:
        print(f"{total(resources / part):7}  resources/src/{part}")
    print(f"{total(*(resources / part for part in POOL)):7}  the pool as a whole")
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "*/src/lib.rs"], capture_output=True, text=True, check=True
    )
    for library in sorted(tracked.stdout.split()):
        folder = Path(library).parent
        print(f"{total(ROOT / folder):7}  {folder.parent}")


if __name__ == "__main__":
    main()
