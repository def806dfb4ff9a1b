"""Merges results into one table: `merge.py millpond.json peer.jsonl …`.

Reads what `millpond-replay bench --format json` prints and the lines that the peers print. A row for each
case, a column for each stack; a cell is nanoseconds a step, for cases of several threads million steps a
second of all threads together.
"""

import argparse
import json
import sys


def read(path):
    """The results of a file, those that did not run included, and the notes."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if not text.strip():
        return [], [f"{path} is empty"]
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    results, notes = [], []
    for row in rows:
        if "results" in row:
            if row.get("version") != 1:
                raise ValueError(f"version {row.get('version')} is unknown; this reads version 1")
            results += row["results"] + row["not_run"]
            device = row["device"]
            notes.append(f"millpond ran on {device['spec']} ({device['name']}), seed {row['seed']}")
            notes += row["notes"]
        else:
            results.append(row)
    return results, notes


def case(result):
    """What makes two results comparable."""
    # Of blocks of many sizes the bytes may differ by the last digit of a logarithm.
    size = result["bytes"] if result["workload"] == "pair" else None
    return result["workload"], result["threads"], result["live"], size


def name(key):
    workload, threads, live, size = key
    if size is not None:
        units = [(1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")]
        unit = next(unit for unit in units if size >= unit[0])
        return f"{workload} {size // unit[0]} {unit[1]}"
    if workload.startswith("churn"):
        return f"{workload} {live} live"
    return f"{workload} {threads} threads"


def is_rate(key):
    return key[0].startswith("threads_") or key[0] == "cross_thread_free"


def cell(key, result, p99):
    if result is None:
        return ""
    if "ns_per_step" not in result:
        return "–"
    if p99:
        return f"{result['p99_ns']:.0f}"
    return f"{result['steps_per_second'] / 1e6:.2f}" if is_rate(key) else f"{result['ns_per_step']:.1f}"


def table(results, p99):
    stacks, rows = [], {}
    for result in results:
        if result["stack"] not in stacks:
            stacks.append(result["stack"])
        rows.setdefault(case(result), {})[result["stack"]] = result
    lines = ["| | " + " | ".join(stacks) + " |", "|---|" + "---:|" * len(stacks)]
    for key, row in rows.items():
        cells = [cell(key, row.get(stack), p99) for stack in stacks]
        unit = " (M steps/s)" if is_rate(key) and not p99 else ""
        lines.append(f"| {name(key)}{unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--json", action="store_true", help="all results as one JSON object, not as tables")
    options = parser.parse_args()
    results, notes = [], []
    for path in options.files:
        try:
            found, about = read(path)
        except (ValueError, KeyError) as error:
            sys.exit(f"error: {path}: {error}")
        results += found
        notes += about
    if options.json:
        print(json.dumps({"version": 1, "results": results, "notes": notes}))
        return
    print("Nanoseconds a step, or million steps a second:\n")
    print(table(results, p99=False))
    print("\nThe 99th percentile of steps, in nanoseconds:\n")
    print(table(results, p99=True))
    print()
    for note in notes:
        print(f"note: {note}")
    for result in results:
        if "ns_per_step" not in result:
            reason = result["reason"].splitlines()[0]
            print(f"note: {name(case(result))} on {result['stack']}: {result['status']}: {reason}")


if __name__ == "__main__":
    main()
