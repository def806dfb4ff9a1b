"""Runs the programs of `record` and `fail` on a GPU, and gathers their snapshots with the truth about them.

    python run_all.py [--out FOLDER] [--seconds 470] [NAME ...]

Needs PyTorch 2.11 or later and a GPU that no other program uses. Each program runs in its own process and
folder, up to four at once; the programs of `fail` take turns on the GPU. A program that fails stops no other.

Writes to FOLDER (or to the folder that the variable OUT names):

- `snapshots-N.tar`, at most six of at most 15 MiB: `NAME.pickle.gz`, and `NAME.txt` with a message;
- `expected.json`: for each program its headers, PyTorch's own counters, and the truth (see truth.py);
- `log.txt`: the output of each program.

`judge.py` compares these with what `explain` says.
"""

import argparse
import gzip
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import headers
import truth

HERE = Path(__file__).resolve().parent
TIMEOUT = 60
AT_ONCE = 4
MOST_TARS = 6
MOST_TAR_BYTES = 15 << 20
# The programs that take the longest come first, so that the others run at the same time.
SLOW = [
    "compiled",
    "hf_trainer",
    "hf_generate_llama",
    "hf_generate_gpt2",
    "lightning_python",
    "lightning_all",
]
# A program that could harm the machine comes last.
LAST = ["pinned"]


class Run:
    """One run of one program."""

    def __init__(self, path, scratch, fix=None):
        self.path, self.fix = path, fix
        self.kind = path.parent.name
        self.headers = headers.read(path)
        self.title = path.stem + {None: "", False: " (fails)", True: " (fixed)"}[fix]
        self.folder = scratch / self.kind / (path.stem + ("-fixed" if fix else ""))
        self.lock = scratch / "lock"
        self.status, self.seconds, self.output = "skipped", 0.0, ""

    def environment(self):
        conf = self.headers.get("conf", "")
        if self.fix:
            conf = self.headers.get("fix conf", conf)
        paths = [str(HERE / "facts"), os.environ.get("PYTHONPATH", "")]
        changed = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "FACTS": str(self.folder / "facts.json"),
            "GPU_LOCK": str(self.lock),
            "FIX": "1" if self.fix else "0",
        }
        changed.update(pair.split("=", 1) for pair in shlex.split(self.headers.get("env", "")))
        unset = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        if conf:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
        return environment | changed

    def run(self, deadline):
        begin = time.monotonic()
        left = min(TIMEOUT, deadline - begin)
        if left < 5:
            return self
        self.folder.mkdir(parents=True)
        with open(self.folder / "output.txt", "w+") as output:
            program = subprocess.Popen(
                [sys.executable, str(self.path)],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = program.wait(left)
                self.status = "ran" if code == 0 else f"exit status {code}"
            except subprocess.TimeoutExpired:
                self.status = f"stopped after {left:.0f} s"
            end_group(program)
            output.seek(0)
            self.output = output.read()
        self.seconds = time.monotonic() - begin
        print(f"{self.title}: {self.status}, {self.seconds:.1f} s", flush=True)
        return self

    def json(self, name):
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None

    def user_files(self):
        more = [name.strip() for name in self.headers.get("user", "").split(",")]
        others = [name if name.startswith("<") else str(self.path.parent / name) for name in more if name]
        return [str(self.path), *others]


def end_group(program):
    """Ends a program and the processes that it started."""
    try:
        os.killpg(program.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    program.wait()


def run_phase(runs, deadline):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda run: run.run(deadline), runs))


def pack(run, packed):
    """Compresses the snapshot and the message of a run. Returns what a reader can know about the file."""
    name = run.path.stem if run.kind == "record" else f"fail_{run.path.stem}"
    entry = {"status": run.status, "seconds": round(run.seconds, 1), "headers": run.headers}
    for text in (f"{run.path.stem}.txt", "unsupported.txt"):
        if (run.folder / text).exists():
            packed[f"{name}.txt"] = (run.folder / text).read_bytes()
            entry["message"] = packed[f"{name}.txt"].decode()
    snapshot = run.folder / "snapshot.pickle"
    if not snapshot.exists():
        return entry | {"file": None}
    data = snapshot.read_bytes()
    packed[f"{name}.pickle.gz"] = gzip.compress(data, 9, mtime=0)
    entry |= {"file": f"{name}.pickle.gz", "pickle_bytes": len(data)}
    entry |= {"gz_bytes": len(packed[entry["file"]]), "facts": run.json("facts.json")}
    try:
        entry["truth"] = truth.of(pickle.loads(data), run.user_files())
    except Exception as error:
        entry["truth_error"] = repr(error)
    return entry


def failure(broken, fixed, packed):
    """Returns the facts about a program that fails, and about its fixed run."""
    facts = broken.json("failure.json") or {}
    expected = [place.split("/", 1)[1] for place in broken.headers["fails"].split(", ")]
    lines = fixed.output.splitlines()
    return pack(broken, packed) | {
        "fails": facts.get("fails"),
        "fails_as_expected": facts.get("fails") in expected,
        "failure": facts,
        "is_fixed": fixed.status == "ran" and any(line.split()[:1] == ["ok"] for line in lines),
        "fixed_status": fixed.status,
        "fixed_seconds": round(fixed.seconds, 1),
    }


def write_tars(out, packed):
    """Writes the files to as few archives as possible, the smallest first. Returns the files left out."""
    tars, left_out = [[]], []
    used = 0
    for name, data in sorted(packed.items(), key=lambda item: len(item[1])):
        size = len(data) + 2048
        if used + size > MOST_TAR_BYTES:
            tars.append([])
            used = 0
        if size > MOST_TAR_BYTES or len(tars) > MOST_TARS:
            left_out.append(name)
            continue
        tars[-1].append(name)
        used += size
    for number, names in enumerate(filter(None, tars), 1):
        with tarfile.open(out / f"snapshots-{number}.tar", "w") as tar:
            for name in sorted(names):
                path = out / name
                path.write_bytes(packed[name])
                tar.add(path, name)
                path.unlink()
    return left_out


def order(path):
    place = SLOW.index(path.stem) if path.stem in SLOW else len(SLOW)
    return path.stem in LAST, place, path.stem


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "out"), type=Path)
    parser.add_argument("--seconds", default=470, type=float, help="programs that do not fit are skipped")
    parser.add_argument("names", nargs="*", help="only these programs")
    return parser.parse_args()


def main():
    options = arguments()
    begin = time.monotonic()
    deadline = begin + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)

    def chosen(folder):
        paths = headers.programs(folder)
        return sorted((p for p in paths if not options.names or p.stem in options.names), key=order)

    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        records = run_phase([Run(path, scratch) for path in chosen("record")], deadline)
        pairs = [(Run(path, scratch, False), Run(path, scratch, True)) for path in chosen("fail")]
        fails = run_phase([run for pair in pairs for run in pair], deadline)
        packed = {}
        expected = {
            "record": {run.path.stem: pack(run, packed) for run in records},
            "fail": {broken.path.stem: failure(broken, fixed, packed) for broken, fixed in pairs},
        }
        with open(options.out / "log.txt", "w") as log:
            for run in [*records, *fails]:
                log.write(f"==== {run.title}: {run.status}, {run.seconds:.1f} s\n{run.output[-20_000:]}\n")
    expected["left_out"] = write_tars(options.out, packed)
    with open(options.out / "expected.json", "w") as file:
        json.dump(expected, file, indent=1)
    report(expected, time.monotonic() - begin)


def report(expected, seconds):
    """Prints one line for each program, and the sums."""
    for name, entry in expected["record"].items():
        found = entry.get("truth") or {}
        events, size = found.get("events"), entry.get("gz_bytes")
        problem = entry.get("truth_error", "")
        print(f"record {name}: {entry['status']}, {events} events, {size} bytes compressed {problem}")
    for name, entry in expected["fail"].items():
        expects = "as expected" if entry["fails_as_expected"] else "NOT AS EXPECTED"
        is_fixed = "fixed ok" if entry["is_fixed"] else f"NOT FIXED ({entry['fixed_status']})"
        print(f"fail {name}: {entry['status']}, fails at {entry['fails']}, {expects}; {is_fixed}")
    print(f"left out: {expected['left_out']}; {seconds:.0f} s")


if __name__ == "__main__":
    main()
