#!/usr/bin/env python3
"""Changes the source in one place at a time, and prints the changes that no test sees.

    scripts/mutants.py build [--seed TEXT]… [--count N] [--conditions] [--out DIR] [FILE…]
    scripts/mutants.py run [--jobs N] [--gpu] [--stop-after SECONDS] [--only PROGRAM…] [DIR]

`build` draws N changes (150) for each seed from the files, which are globs of cargo-mutants (by default the
pool, capture scopes, the driver seam and Python's buffer). The same seed (by default the first eight digits
of the commit) draws the same changes on every machine. One build of the tests contains all changes, and the
environment variable MILLPOND_MUTANT chooses one by its number. Changes that do not compile, and changes of
constants, are left out. `build` needs cargo-mutants (cargo install cargo-mutants --locked) and some Python
packages (pip install tree-sitter tree-sitter-rust pytest numpy hypothesis).

With --conditions, the build also has two changes for each condition of each decision in stream order and the
ladder: `true` and `false` in its place. If tests see both, each value of the condition decided an outcome by
itself, as MC/DC wants.

`run` runs the test programs in DIR (target/mutants) for each change until a test fails or a program does not
end. A program is a crate's unit tests (the slow ones apart), one module of an `it`, such as
resources::crowds, another test binary, or one file of Python's tests, such as python::test_order. With
--gpu, the driver's tests of a GPU run, too. First each program runs without a change, and the tests that fail
then are skipped. If a test fails with a change, it runs three times without the change; if it fails then, it
is left out, and the program runs again. A run that was stopped continues with the programs that are left.
`run` needs only Python and DIR, without DIR/target, so it can run on another machine, if DIR has the same
path there. Remove DIR/baseline.json if you copy it from another machine.
"""

import argparse
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = [
    *(f"resources/src/{folder}/**/*.rs" for folder in ["pool", "store", "heap", "block_map", "stream_order"]),
    "resources/src/capture_scopes/**/*.rs",
    *(f"{folder}/**/*.rs" for folder in ["core/src/driver", "driver/src/cuda", "driver/src/counting"]),
    *(f"python/src/{file}.rs" for file in ["block", "buffer", "dlpack", "from_dlpack", "host", "view"]),
]
CONDITIONS = [
    "resources/src/stream_order/**/*.rs",
    *(f"resources/src/pool/central/{file}.rs" for file in ["act", "collect", "ladder", "steps"]),
]
# Tests and models change nothing that a program runs.
NOT_CHANGED = ["models.rs", "tests.rs", "model", "checker", "clients", "tie"]
# Each uses those before it.
PACKAGES = ["core", "driver", "resources", "tests", "python"]
VARIABLE = "MILLPOND_MUTANT"
# These modules of the packages' tests build programs or make mistakes of their own.
LEFT_OUT = {"tests::museum", "tests::newcomers"}
# These files of Python's tests check texts, or need more packages.
PYTHON_LEFT_OUT = {
    "test_book",
    "test_docs",
    "test_frameworks",
    "test_headers",
    "test_rmm_bridge",
    "test_types",
}
# Unit tests that take longer than all others of their crate run on their own.
SLOW_UNITS = {"pool::central::tie": "tie", "stream_order::checker": "checker"}
# A test sees a change soon or never, so fewer operations than usual suffice.
SETTINGS = {
    "MILLPOND_ORDER_OPS": "300000",
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "RUST_BACKTRACE": "0",
    "RUST_TEST_THREADS": "2",
}
SWITCH = f"""
// Added by scripts/mutants.py.
static MUTANT: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {{
    std::env::var("{VARIABLE}").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
}});
pub(crate) fn mutant(number: u32) -> bool {{
    *MUTANT == number
}}
"""


def drawn(seed: str, count: int, files: list[str]) -> list[dict]:
    """Draws changes."""
    left_out = [f"--exclude=**/{name}{end}" for name in NOT_CHANGED for end in ("", "/**")]
    command = ["cargo", "mutants", "--list", "--json", "--workspace", *left_out]
    changes = json.loads(subprocess.check_output([*command, *(f"--file={file}" for file in files)], cwd=ROOT))
    for change in changes:
        # cargo-mutants does not know the alias of `Result`.
        made = re.fullmatch(
            r"DriverResult::(?:new|from)\((.*)\)|DriverResult::from_iter\(\[(.*)\]\)", change["replacement"]
        )
        if made:
            change["replacement"] = f"Ok({made[1] or made[2] or 'Default::default()'})"
    changes.sort(key=lambda change: hashlib.sha256(f"{seed} {change['name']}\n".encode()).hexdigest())
    return [{"draw": seed} | change for change in changes[:count]]


def conditions() -> list[dict]:
    """Lists two changes for each condition."""
    changes = []
    for file in (str(path.relative_to(ROOT)) for glob in CONDITIONS for path in sorted(ROOT.glob(glob))):
        if any(part in NOT_CHANGED for part in Path(file).parts):
            continue
        source = Source((ROOT / file).read_bytes())
        for node in leaves(source.tree):
            for value in ("true", "false"):
                (line, column), text = node.start_point, node.text.decode()
                name = f"{file}:{line + 1}:{column + 1}: replace `{' '.join(text.split())}` with {value}"
                span = {
                    side: {"line": point.row + 1, "column": source.column(point)}
                    for side, point in (("start", node.start_point), ("end", node.end_point))
                }
                change = {"draw": "conditions", "file": file, "genre": "Condition", "name": name}
                changes.append(change | {"replacement": value, "span": span})
    return changes


def leaves(node, decision: bool = False):
    """The conditions of the decisions in a part of the syntax: the operands of `&&`, `||` and `!`."""
    kind = node.type
    operator = node.child_by_field_name("operator")
    is_logical = kind == "binary_expression" and operator.type in ("&&", "||")
    is_passed_on = is_logical or kind in ("parenthesized_expression", "let_chain")
    is_passed_on |= kind == "unary_expression" and node.children[0].type == "!"
    if decision and not is_passed_on and kind != "let_condition" and node.is_named:
        yield node
    is_test = kind == "mod_item" and node.child_by_field_name("name").text == b"tests"
    for child in () if is_test else node.named_children:
        is_condition = node.child_by_field_name("condition") == child and kind != "let_condition"
        yield from leaves(child, is_condition or is_logical or (decision and is_passed_on))


@dataclass
class Edit:
    """One change of the source: its text from `start` to `end` becomes `text`."""

    number: int
    start: int
    end: int
    text: str


@dataclass(eq=False)
class Site:
    """A part of the source that has one or more changes. A change at an empty site inserts its text."""

    start: int
    end: int
    braces: str = "()"
    edits: list[Edit] = field(default_factory=list)


class Refused(Exception):
    """A change that no switch can make."""


class Source:
    """A source file, with all of its changes behind switches."""

    def __init__(self, text: bytes):
        import tree_sitter
        import tree_sitter_rust

        self.text = text
        self.lines = text.splitlines(keepends=True)
        language = tree_sitter.Language(tree_sitter_rust.language())
        self.tree = tree_sitter.Parser(language).parse(text).root_node
        self.sites: dict[tuple[int, int, str], Site] = {}

    def offset(self, position: dict) -> int:
        before = sum(len(line) for line in self.lines[: position["line"] - 1])
        line = self.lines[position["line"] - 1].decode()
        return before + len(line[: position["column"] - 1].encode())

    def column(self, point) -> int:
        return len(self.lines[point.row][: point.column].decode()) + 1

    def add(self, change: dict) -> None:
        start, end = (self.offset(change["span"][side]) for side in ("start", "end"))
        node = self.tree.descendant_for_byte_range(start, end)
        if in_constant(node):
            raise Refused("a constant")
        number, text = change["number"], change["replacement"]
        edit = Edit(number, start, end, text)
        match change["genre"]:
            case "FnValue":
                if "impl " in change["function"]["return_type"]:
                    raise Refused("a value of another type than the function's own")
                value = "" if text == "()" else f" {text}"
                edit.text = f"if crate::mutant({number}) {{ return{value}; }} "
                self.site(start, start).append(edit)
            case "BinaryOperator":
                node = above(node, "binary_expression", "compound_assignment_expr", "let_chain")
                if node.type == "let_chain":
                    raise Refused("an operator between patterns")
                braces = "{}" if node.type == "compound_assignment_expr" else "()"
                self.site(node.start_byte, node.end_byte, braces).append(edit)
            case "UnaryOperator":
                node = above(node, "unary_expression")
                self.site(node.start_byte, node.end_byte).append(edit)
            case "MatchArmGuard" | "Condition":
                self.site(start, end).append(edit)
            case "MatchArm":
                pattern = above(node, "match_arm").child_by_field_name("pattern")
                guard = pattern.child_by_field_name("condition")
                if guard:
                    start, end = guard.start_byte, guard.end_byte
                    self.site(start, end).append(Edit(number, start, end, "false"))
                else:
                    edit.text = f" if !crate::mutant({number})"
                    self.site(pattern.end_byte, pattern.end_byte).append(edit)
            case "StructField":
                node = above(node, "struct_expression")
                edit.end += len(re.match(rb"\s*,?", self.text[end:])[0])
                self.site(node.start_byte, node.end_byte).append(edit)
            case genre:
                raise Refused(f"a {genre}")

    def site(self, start: int, end: int, braces: str = "()") -> list[Edit]:
        return self.sites.setdefault((start, end, braces), Site(start, end, braces)).edits

    def switched(self) -> bytes:
        # An insertion comes before a part that starts at the same place, a part before the parts in it.
        key = lambda site: (site.start, site.end > site.start, -site.end)  # noqa: E731
        self.order = sorted(self.sites.values(), key=key)
        return self.render(0, len(self.text), frozenset()).encode()

    def render(self, start: int, end: int, done: frozenset[Site]) -> str:
        """The text from `start` to `end` with the switches of all sites in it, except of those in `done`."""
        out, at = "", start
        for site in self.order:
            if site in done or site.start < at or site.end > end:
                continue
            if site.start == site.end:
                text = "".join(f"/*[{edit.number}*/{edit.text}/*]*/" for edit in site.edits)
                done |= {site}
            else:
                text = self.switch(site, done | {site})
            out += self.text[at : site.start].decode() + text
            at = site.end
        return out + self.text[at:end].decode()

    def switch(self, site: Site, done: frozenset[Site]) -> str:
        out = ""
        for edit in site.edits:
            before = self.render(site.start, edit.start, done)
            after = self.render(edit.end, site.end, done)
            changed = f"{before} {edit.text} {after}"
            out += f"/*[{edit.number}*/if crate::mutant({edit.number}) {{ {changed} }}/*]*/ else "
        numbers = ",".join(str(edit.number) for edit in site.edits)
        unchanged = self.render(site.start, site.end, done)
        return f"/*[{numbers}*/{site.braces[0]}{out}{{ {unchanged} }}{site.braces[1]}/*]*/"


def above(node, *kinds: str):
    while node and node.type not in kinds:
        node = node.parent
    if not node:
        raise Refused("no part of the syntax has it")
    return node


def in_constant(node) -> bool:
    while node and node.type != "function_item":
        if node.type in ("const_item", "static_item"):
            return True
        node = node.parent
    modifiers = [child for child in node.children if child.type == "function_modifiers"] if node else []
    return any(b"const" in child.text.split() for child in modifiers)


def numbers_at(text: bytes, start: int, end: int) -> set[int]:
    """The changes whose text encloses an error, else those whose text lies in it."""
    stack, inner, enclosing = [], set(), None
    for mark in re.finditer(rb"/\*\[([\d,]+)\*/|/\*\]\*/", text):
        if mark.start() >= start and enclosing is None:
            enclosing = stack[-1][1] if stack else set()
        if mark.start() >= end:
            break
        if mark[1]:
            stack.append((mark.start(), {int(number) for number in mark[1].split(b",")}))
        else:
            opened, numbers = stack.pop()
            if opened >= start:
                inner |= numbers
    for opened, numbers in stack:
        if opened >= start:
            inner |= numbers
    return enclosing or inner


def refused_by_compiler(messages: list[dict], tree: Path) -> dict[int, str]:
    """Which changes cause the errors, and the text of their errors."""
    found: dict[int, str] = {}
    for message in messages:
        spans = [(span, False) for span in sorted(message["spans"], key=lambda span: not span["is_primary"])]
        # The parts that the compiler would change may lie elsewhere.
        proposed = [span for child in message["children"] for span in child["spans"]]
        spans += [(span, True) for span in proposed]
        # An arm that a `match` lacks lies between the two.
        primary = message["spans"][:1]
        spans += [(first | {"byte_end": last["byte_end"]}, False) for first in primary for last in proposed]
        for span, is_whole_line in spans:
            file = tree / span["file_name"]
            text = file.read_bytes() if file.is_file() else b""
            start, end = span["byte_start"], span["byte_end"]
            if is_whole_line:
                start, end = text.rfind(b"\n", 0, start) + 1, text.find(b"\n", end)
            numbers = numbers_at(text, start, end)
            if numbers:
                found |= dict.fromkeys(numbers, message["message"])
                break
    return found


def copy_tree(tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for file in files.split("\0"):
        if file and (ROOT / file).is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, tree / file)


def instrument(changes: list[dict], tree: Path) -> None:
    by_file = defaultdict(list)
    for change in changes:
        by_file[change["file"]].append(change)
    libraries = {file.partition("/src/")[0] + "/src/lib.rs" for file in by_file}
    for library in libraries:
        by_file.setdefault(library, [])
    for file, there in by_file.items():
        source = Source((ROOT / file).read_bytes())
        for change in there:
            if "refused" in change:
                continue
            try:
                source.add(change)
            except Refused as why:
                change["refused"] = str(why)
        text = source.switched() + (SWITCH.encode() if file in libraries else b"")
        if (tree / file).read_bytes() != text:
            (tree / file).write_bytes(text)


def compile_tests(changes: list[dict], tree: Path) -> list[dict]:
    """Builds the tests, without the changes that do not compile. Returns cargo's messages."""
    packages = [f"--package=millpond-{package}" for package in PACKAGES[:-1]]
    targets = ["--lib", "--test", "it", "--test", "memory_checker"]
    tests = ["cargo", "test", "--locked", *packages, *targets, "--no-run"]
    libraries = ["cargo", "build", "--locked", "--package=millpond-python", "--package=millpond-capi"]
    while True:
        instrument(changes, tree)
        messages = []
        for command in (tests, libraries):
            code, said = run_cargo(command, tree)
            messages += said
            if code:
                break
        else:
            return messages
        said = [message["message"] for message in messages if message["reason"] == "compiler-message"]
        errors = [message for message in said if message["level"] == "error"]
        found = refused_by_compiler(errors, tree)
        new = [change for change in changes if change["number"] in found and "refused" not in change]
        if not new:
            sys.exit("".join(message["rendered"] for message in errors) + "no change causes these errors")
        for change in new:
            change["refused"] = found[change["number"]]
        print(f"{len(new)} changes do not compile", flush=True)


def run_cargo(command: list[str], tree: Path) -> tuple[int, list[dict]]:
    # Cargo would take crates of another checkout for these ones, and the other way round.
    environment = os.environ | {"CARGO_TARGET_DIR": str(tree.parent / "target")}
    command = [*command, "--message-format=json"]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def keep_binaries(messages: list[dict], folder: Path) -> list[dict]:
    """Copies the test binaries, and lists the programs: the parts of the binaries that run separately."""
    (folder / "bin").mkdir(exist_ok=True)
    programs = defaultdict(list)
    for message in messages:
        for file in message.get("filenames", []):
            # A test preloads it, and looks for it next to its own program.
            if Path(file).name == "libmillpond_shim.so":
                shutil.copy2(file, folder / "bin")
        if not message.get("executable") or not message["profile"]["test"]:
            continue
        cwd = Path(message["manifest_path"]).parent
        unit = "lib" in message["target"]["kind"]
        listed = subprocess.check_output([message["executable"], "--list"], cwd=cwd, text=True)
        tests = re.findall(r"^(.+): test$", listed, re.M)
        if not tests:
            continue
        target = "unit" if unit else message["target"]["name"]
        binary = folder / "bin" / f"{cwd.name}_{target}"
        shutil.copy2(message["executable"], binary)
        subprocess.run(["strip", "--strip-debug", binary], check=True)
        for test in tests:
            slow = (part for path, part in SLOW_UNITS.items() if test.startswith(path))
            part = test.split("::")[0] if target == "it" else target
            name = f"{cwd.name}::{next(slow, part) if unit else part}"
            if name not in LEFT_OUT:
                programs[name, binary.name, str(cwd.relative_to(folder))].append(test)
    return [
        {"name": name, "binary": binary, "cwd": cwd, "tests": tests}
        for (name, binary, cwd), tests in programs.items()
    ]


def keep_python(messages: list[dict], folder: Path) -> list[dict]:
    """Puts the Python package and its tests in the folder, and lists the programs: the files of tests."""
    source, site = folder / "src/python", folder / "python"
    shutil.rmtree(site, ignore_errors=True)
    for part in ("millpond", "tests"):
        shutil.copytree(source / part, site / part)
    shutil.copytree(folder / "src/capi/include", site / "millpond/include")
    # One of the tests reads the model that is proved.
    shutil.copytree(folder / "src/scripts/proof", folder / "scripts/proof", dirs_exist_ok=True)
    built = [file for message in messages for file in message.get("filenames", []) if file.endswith(".so")]
    for file, target in (
        ("lib_native.so", "millpond/_native.abi3.so"),
        ("libmillpond_c.so", "libmillpond_c.so"),
    ):
        path = next(path for path in built if Path(path).name == file)
        shutil.copy2(path, site / target)
        subprocess.run(["strip", "--strip-debug", site / target], check=True)
    names = sorted(file.stem for file in (source / "tests").glob("test_*.py"))
    programs = [
        {"name": f"python::{name}", "cwd": "python", "tests": collected(folder, name)}
        for name in names
        if name not in PYTHON_LEFT_OUT
    ]
    if empty := [program["name"] for program in programs if not program["tests"]]:
        sys.exit(f"no tests were found in {', '.join(empty)}")
    return programs


def python_command(folder: Path) -> tuple[list, dict[str, str]]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-rfE",
        "--rootdir=.",
    ]
    path = [str(folder / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A machine with a GPU tests the simulated device, too.
    environment = {"CUDA_VISIBLE_DEVICES": "", "MILLPOND_LIBRARY": str(folder / "python/libmillpond_c.so")}
    return command, environment | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(path)}


def python_arguments(all_tests: list[str], wanted: list[str]) -> list[str]:
    """Names one test, or a file and the tests that are left out: names of tests may differ elsewhere."""
    if len(wanted) == 1:
        return wanted
    file = all_tests[0].partition("::")[0]
    return [file, *(f"--deselect={test}" for test in all_tests if test not in wanted)]


def collected(folder: Path, name: str) -> list[str]:
    """The tests in a file of Python's tests."""
    command, environment = python_command(folder)
    command += ["--collect-only", f"tests/{name}.py"]
    done = subprocess.run(
        command, cwd=folder / "python", env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    return re.findall(r"^(tests/\S+::.+)$", done.stdout, re.M)


def own_folder(folder: Path) -> None:
    """Makes the folder. Refuses a folder with files that was not made here, as scripts/own-folder.sh does."""
    mark = folder / ".made-by-millpond"
    if folder.exists() and not mark.exists() and (not folder.is_dir() or any(folder.iterdir())):
        sys.exit(f"{folder} is not a folder that this script made; name another one, or delete it")
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()


def build(options: argparse.Namespace) -> None:
    folder = options.out.resolve()
    own_folder(folder)
    tree = folder / "src"
    changes = [
        change for seed in options.seed for change in drawn(seed, options.count, options.files or FILES)
    ]
    if options.conditions:
        changes += conditions()
    for number, change in enumerate(changes, 1):
        change["number"] = number
    if not changes:
        sys.exit("no changes of these files")
    copy_tree(tree)
    messages = compile_tests(changes, tree)
    programs = keep_binaries(messages, folder) + keep_python(messages, folder)
    for change in changes:
        change.pop("diff", None)
    manifest = {"changes": changes, "programs": programs}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    for old in ("baseline.json", "results.jsonl"):
        (folder / old).unlink(missing_ok=True)
    shutil.copy2(__file__, folder)
    left = [change for change in changes if "refused" not in change]
    print(f"{len(left)} of {len(changes)} changes are in {folder}")


@dataclass
class Outcome:
    seconds: float
    failed: list[str]
    complete: bool


class Runner:
    """Runs the programs of a folder."""

    def __init__(self, options: argparse.Namespace):
        self.folder = options.folder.resolve()
        self.jobs = options.jobs
        self.gpu = options.gpu
        self.end = time.monotonic() + options.stop_after
        manifest = json.loads((self.folder / "manifest.json").read_text())
        self.changes, self.programs = manifest["changes"], manifest["programs"]
        self.only = options.only
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.seen: dict[int, str] = {}
        self.passed: set[tuple[int, str]] = set()
        self.unsteady: set[tuple[str, str]] = set()
        self.results = self.folder / "results.jsonl"
        for line in self.results.read_text().splitlines() if self.results.exists() else []:
            self.note(json.loads(line))

    def note(self, result: dict) -> None:
        number, program, by = result["mutant"], result["program"], result["seen"]
        if by:
            self.seen.setdefault(number, f"{program}: {by}")
        else:
            self.passed.add((number, program))

    def outcome(self, program: dict, tests: list[str], number: int, limit: float) -> Outcome:
        """Runs tests. With a change, only until one fails."""
        environment = SETTINGS | os.environ | {VARIABLE: str(number)}
        if "binary" in program:
            command = [self.folder / "bin" / program["binary"], "--exact", *tests]
            if self.gpu and program["binary"] == "driver_it":
                command.append("--include-ignored")
        else:
            command, more = python_command(self.folder)
            environment |= more
            command += ["--maxfail=1"] * bool(number) + python_arguments(program["tests"], tests)
        start = time.monotonic()
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder / program["cwd"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                while True:
                    code = process.poll()
                    said = os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")
                    failed = sorted(
                        set(re.findall(r"^test (\S+)(?: - .*)? \.\.\. .*FAILED", said, re.M))
                        | set(re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", said, re.M))
                    )
                    seconds = time.monotonic() - start
                    if code is not None:
                        if code and not failed:
                            failed = [f"exit {code}"]
                        return Outcome(seconds, failed, True)
                    if failed and number:
                        return Outcome(seconds, failed, True)
                    if seconds > limit:
                        running = re.findall(r"^test (\S+) has been running", said, re.M)
                        return Outcome(seconds, [f"no end: {' '.join(running)}"], True)
                    if self.stopped.is_set() or time.monotonic() > self.end or number in self.seen:
                        return Outcome(seconds, [], False)
                    time.sleep(0.1)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()

    def for_all(self, work: list, function) -> None:
        """Calls a function for each piece of work, on as many threads as there are jobs."""
        left = queue.SimpleQueue()
        for piece in work:
            left.put(piece)

        def worker() -> None:
            while not self.stopped.is_set() and time.monotonic() < self.end:
                try:
                    function(left.get_nowait())
                except queue.Empty:
                    return

        threads = [threading.Thread(target=worker) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self.stopped.set()
            raise

    def baseline(self) -> dict[str, dict]:
        """What each program does without a change."""
        file = self.folder / "baseline.json"
        known = json.loads(file.read_text()) if file.exists() else {}

        def one(program: dict) -> None:
            done = self.outcome(program, program["tests"], 0, 600)
            if done.complete:
                with self.lock:
                    known[program["name"]] = {"seconds": done.seconds, "failed": done.failed}
                    file.write_text(json.dumps(known, indent=1))
                for test in done.failed:
                    print(f"without a change: {program['name']}: {test} failed", flush=True)

        self.for_all([program for program in self.chosen() if program["name"] not in known], one)
        return known

    def chosen(self) -> list[dict]:
        return [one for one in self.programs if not self.only or one["name"] in self.only]

    def run(self) -> None:
        baseline = self.baseline()
        runnable = {}
        for program in self.chosen():
            failed = set(baseline.get(program["name"], {"failed": program["tests"]})["failed"])
            tests = [test for test in program["tests"] if test not in failed]
            if tests and not any(test.startswith(("exit ", "no end")) for test in failed):
                runnable[program["name"]] = (program, tests, baseline[program["name"]]["seconds"])
        numbers = [change["number"] for change in self.changes if "refused" not in change]

        def one(job: tuple[str, int]) -> None:
            name, number = job
            if number in self.seen:
                return
            program, all_tests, seconds = runnable[name]
            while True:
                tests = [test for test in all_tests if (name, test) not in self.unsteady]
                if not tests:
                    return
                done = self.outcome(program, tests, number, max(60, 5 * seconds))
                if not done.complete:
                    return
                by = done.failed[0] if done.failed else None
                if by not in tests or not any(self.outcome(program, [by], 0, 600).failed for _ in range(3)):
                    break
                print(f"left out of {name}: {by}, which also fails without a change", flush=True)
                self.unsteady.add((name, by))
            result = {"mutant": number, "program": name, "seen": by, "seconds": round(done.seconds, 1)}
            with self.lock, self.results.open("a") as out:
                out.write(json.dumps(result) + "\n")
                self.note(result)
            if by:
                print(f"{number} seen by {name}: {by}", flush=True)

        jobs = []
        for change in (change for change in self.changes if "refused" not in change):
            crate = change["file"].split("/")[0]
            for name in (
                program["name"] for program in self.programs_for(change) if program["name"] in runnable
            ):
                there, _, module = name.partition("::")
                # The unit tests of the changed crate see most changes, and its other tests many of the rest.
                order = (there != crate, there == "python", module != "unit", runnable[name][2])
                jobs.append((order, (name, change["number"])))
        jobs = [job for _, job in sorted(jobs)]
        self.for_all([(name, number) for name, number in jobs if (number, name) not in self.passed], one)
        self.report(numbers)

    def programs_for(self, change: dict) -> list[dict]:
        """The programs that contain the changed crate."""
        without = PACKAGES[: PACKAGES.index(change["file"].split("/")[0])]
        return [program for program in self.programs if program["name"].partition("::")[0] not in without]

    def report(self, numbers: list[int]) -> None:
        changes = {change["number"]: change for change in self.changes}
        for draw in dict.fromkeys(change["draw"] for change in self.changes):
            there = [number for number in numbers if changes[number]["draw"] == draw]
            unseen = [number for number in there if number not in self.seen]
            for number in unseen:
                programs = self.programs_for(changes[number])
                ran = sum((number, program["name"]) in self.passed for program in programs)
                name = changes[number]["name"]
                print(f"not seen by {ran} of {len(programs)} programs: {number} {name}")
            share = 100 * len(unseen) / max(len(there), 1)
            print(f"{draw}: {len(there)} ran, {len(unseen)} not seen ({share:.0f} %)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    commands = parser.add_subparsers(dest="command", required=True)
    here = Path(__file__).resolve().parent
    target = here if (here / "manifest.json").exists() else ROOT / "target/mutants"
    build_options = commands.add_parser("build")
    build_options.add_argument("--seed", action="append")
    build_options.add_argument("--count", type=int, default=150)
    build_options.add_argument("--conditions", action="store_true")
    build_options.add_argument("--out", type=Path, default=target)
    build_options.add_argument("files", nargs="*", metavar="FILE")
    run_options = commands.add_parser("run")
    run_options.add_argument("--jobs", type=int, default=1)
    run_options.add_argument("--gpu", action="store_true")
    run_options.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    run_options.add_argument("--only", action="append", metavar="PROGRAM")
    run_options.add_argument("folder", nargs="?", type=Path, default=target, metavar="DIR")
    options = parser.parse_args()
    if options.command == "run":
        Runner(options).run()
        return
    if not options.seed:
        commit = ["git", "rev-parse", "--short=8", "HEAD"]
        options.seed = [subprocess.check_output(commit, cwd=ROOT, text=True).strip()]
    build(options)


if __name__ == "__main__":
    main()
