"""Judges `millpond-replay explain` by the truth that run_all.py wrote. Imports nothing of millpond.

    python judge.py expected.json FOLDER [--explain MILLPOND_REPLAY] [--list]

FOLDER holds the snapshots. With `--explain`, runs `MILLPOND_REPLAY explain --format json FILE` for each;
without it, reads `NAME.json` next to each `NAME.pickle.gz`. For each file, prints the verdicts expected and
found, and which share of the stacks with a line of the user leads with it. `--list` prints each wrong stack.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

FRAME = re.compile(r"(?P<name>.*?) \((?P<file>.*):(?P<line>\d+)\)")
LINE = re.compile(r"(?P<file>\S.*?):(?P<line>\d+)(?: in (?P<name>.+))?")
# The names of the field with the line that leads, if it is not the first frame of the stack.
LEADS = ("line", "lead", "leads", "user", "user_line", "at")
# The words for a recording that cannot be judged.
TOO_LITTLE = re.compile(r"too.little|not.recorded|no_trace|ring_wrapped|began_late|no_stacks|no_frames", re.I)
FAILED = re.compile(r"fail|does_not_fit|limit|fragmentation|other_pool|out.of.memory", re.I)


def parse(frame):
    """Returns the file's name, the line and the function of a frame, or None."""
    if isinstance(frame, dict):
        file = frame.get("file") or frame.get("filename") or ""
        name = frame.get("function") or frame.get("name") or ""
        return Path(str(file)).name, int(frame.get("line") or 0), str(name)
    found = FRAME.search(frame or "") or LINE.search(frame or "")
    if not found:
        return None
    return Path(found["file"]).name, int(found["line"]), found["name"] or ""


def same(one, other):
    """Whether two frames are the same line; the functions may be qualified."""
    if not one or not other or one[:2] != other[:2]:
        return False
    names = [re.split(r"[.: ]", frame[2].replace("()", ""))[-1] for frame in (one, other)]
    return not all(names) or names[0] == names[1]


def lead(holder):
    """Returns the frame that leads: a field of its own, or the first of the stack."""
    for field in LEADS:
        frame = parse(holder[field]) if holder.get(field) else None
        if frame:
            return frame
    return parse(next(iter(holder.get("stack") or []), None))


def moments(found):
    """Yields each moment of the explanation with its holders, the failures in their order."""
    for moment in found.get("moments", []):
        yield moment["occasion"], moment.get("holders", [])


def expected_lives(truth):
    """Returns what lived at each occasion: sums by stack and by line, possibly several."""
    end = truth["end"]
    peaks = [truth["peak"], truth["active_peak"]]
    failures = [failure["live"] for peak in peaks for failure in peak["failures"]]
    return {
        "peak": [peak["live"] for peak in peaks],
        "end": [end["rounded"], end["requested"]],
        "failure": failures,
    }


def judge_holder(holder, lives, lines):
    """Returns `right`, `wrong`, or `none` if the stack has no line of the user."""
    frame = lead(holder)
    if any(same(frame, line) for line in lines):
        return "right"
    if any(same(parse(other), line) for other in holder.get("stack") or [] for line in lines):
        return "wrong"
    for life in lives:
        for group in life["stacks"] + life["lines"]:
            # The allocator rounds each block to 512 bytes.
            near = 0 <= holder["bytes"] - group["bytes"] <= 512 * group["blocks"]
            if group["line"] and group["blocks"] == holder["blocks"] and near:
                twin = any(
                    other["line"] is None
                    and other["blocks"] == group["blocks"]
                    and abs(other["bytes"] - group["bytes"]) <= 512 * group["blocks"]
                    for other in life["stacks"]
                )
                if not twin:
                    return "wrong"
    return "none"


def texts(found):
    """Returns the codes, and all sentences of the verdict, the diagnoses and the gaps."""
    parts, codes = [], []
    verdicts = found.get("verdict"), *(found.get("verdicts") or [])
    for verdict in [*verdicts, *found.get("diagnoses", [])]:
        if isinstance(verdict, dict):
            codes.append(str(verdict.get("code") or verdict.get("kind") or ""))
            parts.append(json.dumps({k: v for k, v in verdict.items() if k != "holders"}, ensure_ascii=False))
        elif verdict:
            codes.append(str(verdict))
            parts.append(str(verdict))
    gaps = [gap["code"] for gap in found.get("not_known", [])]
    return codes, gaps, "\n".join(parts)


def judge_verdict(header, codes, gaps):
    """Whether the verdict on a recorded program is the expected one."""
    if header == "any":
        return True
    if header == "too_little":
        return bool(TOO_LITTLE.search(" ".join([*codes, *gaps])))
    failed = bool(FAILED.search(" ".join(codes)))
    return failed if header == "limit" else not failed


def explain(options, file):
    path = options.folder / file
    if options.explain:
        words = [options.explain, "explain", "--format", "json", str(path)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            return None, done.stderr.strip().splitlines()[-1:]
        return json.loads(done.stdout), None
    saved = path.with_name(file.removesuffix(".pickle.gz") + ".json")
    return (json.loads(saved.read_text()), None) if saved.exists() else (None, [f"{saved} is missing"])


def holders(name, entry, found, options):
    """Counts how the stacks of one file lead."""
    truth = entry["truth"]
    lives = expected_lives(truth)
    known = {line for line in truth["lines"] if line != "none"}
    for life in (life for group in lives.values() for life in group):
        known |= {line["line"] for line in life["lines"] if line["line"]}
    lines = [parse(line) for line in known]
    counts = Counter()
    for occasion, some in moments(found):
        for holder in some:
            mark = judge_holder(holder, lives.get(occasion, []), lines)
            counts[mark] += 1
            if mark == "wrong" and options.list:
                print(f"    {occasion}: {holder['bytes']} bytes lead with {lead(holder)}")
    return counts


def figures(entry, found):
    """Compares the sums with PyTorch's own. Returns the differences as text."""
    truth, sums = entry["truth"], found.get("sums", {})
    wrong = []
    peaks = [truth["peak"]["bytes"], truth["active_peak"]["bytes"]]
    if sums.get("peak_live_bytes") not in peaks and truth["events"]:
        wrong.append(f"peak {sums.get('peak_live_bytes')}, counted {peaks}")
    if sums.get("reserved_bytes") != truth["end"]["reserved"]:
        wrong.append(f"reserved {sums.get('reserved_bytes')}, counted {truth['end']['reserved']}")
    if sums.get("failures") != truth["peak"]["failure_count"]:
        wrong.append(f"failures {sums.get('failures')}, counted {truth['peak']['failure_count']}")
    facts = entry.get("facts") or {}
    requested = facts.get("requested_bytes.all.peak")
    return "; ".join(
        wrong
    ), f"PyTorch's peaks: requested {requested}, reserved {facts.get('max_memory_reserved')}"


def judge_failure(entry, found, codes, text):
    """Returns the right parts of the answer to a failure: the cause, the line, the failing line, the fix."""
    headers = entry["headers"]

    def says(header, where):
        return bool(re.search(headers[header], where, re.I))

    named = [holder for occasion, some in moments(found) if occasion == "failure" for holder in some]
    named += [holder for diagnosis in found.get("diagnoses", []) for holder in diagnosis.get("holders", [])]

    def leads(header):
        places = [place.split("/", 1)[1] for place in headers[header].split(", ")]
        spoken = any(place.split(" in ")[0] in text for place in places)
        return spoken or any(same(lead(holder), parse(place)) for holder in named for place in places)

    fixes = "\n".join(
        str(fix) for diagnosis in found.get("diagnoses", []) for fix in diagnosis.get("fixes", [])
    )
    return {
        "code": says("codes", " ".join(codes)),
        "cause": says("says", text),
        "line": leads("line"),
        "failing line": leads("fails"),
        "fix": says("fix says", fixes or text),
    }


def judge(name, kind, entry, options):
    """Prints the judgment on one file. Returns the counts of its stacks, and whether all is right."""
    title = f"{kind} {name}"
    if not entry.get("file"):
        print(f"{title}: no snapshot ({entry['status']}): {entry.get('message', '').strip()[:120]}")
        return Counter(), entry["headers"].get("verdict") == "unsupported"
    if "truth" not in entry:
        print(f"{title}: no truth: {entry.get('truth_error')}")
        return Counter(), False
    found, problem = explain(options, entry["file"])
    if found is None:
        print(f"{title}: NOT EXPLAINED: {problem}")
        return Counter(), False
    codes, gaps, text = texts(found)
    counts = holders(name, entry, found, options)
    wrong, peaks = figures(entry, found)
    if kind == "fail":
        parts = judge_failure(entry, found, codes, text)
        is_right = all(parts.values())
        verdict = f"{entry['headers']['cause']}; " + ", ".join(
            f"{part}: {'yes' if value else 'NO'}" for part, value in parts.items()
        )
    else:
        header = entry["headers"].get("verdict", "any")
        is_right = judge_verdict(header, codes, gaps)
        verdict = f"expected {header}: {'yes' if is_right else 'NO'}"
    print(f"{title}: {verdict}; found {codes or 'no problem'}, gaps {gaps}")
    print(f"    stacks: {counts['right']} lead with the user's line, {counts['wrong']} do not,", end=" ")
    print(f"{counts['none']} have none; {wrong or 'figures agree'}; {peaks}")
    return counts, is_right and not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("expected", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--explain", metavar="MILLPOND_REPLAY")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    expected = json.loads(options.expected.read_text())
    sums, right, files = Counter(), 0, 0
    for kind in ("record", "fail"):
        for name, entry in expected[kind].items():
            counts, is_right = judge(name, kind, entry, options)
            sums += counts
            right += is_right
            files += 1
    asked = sums["right"] + sums["wrong"]
    share = 100 * sums["right"] / asked if asked else 0.0
    print(f"of {asked} stacks with a user's Python frame, {share:.1f} % lead with it")
    print(f"{right} of {files} files are right in verdict and figures")
    sys.exit(0 if right == files and share >= 98 else 1)


if __name__ == "__main__":
    main()
