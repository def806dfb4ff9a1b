"""What a snapshot says, counted without millpond: events, peaks, and the user's line of each stack.

The user's line of a stack is its innermost frame in a file of the user. Lines have the form
`file.py:12 in step`. Sizes are the bytes that the program requested.
"""

import os
from collections import Counter

# The most entries of a list. Files stay small, and `explain` names fewer.
MOST = 60


def key_of(frames):
    return tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames)


class Stacks:
    """Names the user's line of stacks, given the paths of the user's files."""

    def __init__(self, files):
        self.files = {os.path.realpath(file) if os.path.isabs(file) else file for file in files}
        self.lines = {}

    def is_user(self, file):
        return file in self.files or os.path.realpath(file) in self.files

    def line(self, stack):
        if stack not in self.lines:
            own = (frame for frame in stack if self.is_user(frame[0]))
            frame = next(own, None)
            self.lines[stack] = frame and f"{os.path.basename(frame[0])}:{frame[1]} in {frame[2]}"
        return self.lines[stack]


def by_stack(blocks, stacks):
    """Sums blocks, pairs of a size and a stack, by stack and by the user's line."""
    sums, counts = Counter(), Counter()
    for size, stack in blocks:
        sums[stack] += size
        counts[stack] += 1
    groups = [
        {
            "bytes": size,
            "blocks": counts[stack],
            "line": stacks.line(stack),
            "innermost": f"{stack[0][2]} ({stack[0][0]}:{stack[0][1]})" if stack else None,
        }
        for stack, size in sums.most_common()
    ]
    lines, line_blocks = Counter(), Counter()
    for group in groups:
        lines[group["line"]] += group["bytes"]
        line_blocks[group["line"]] += group["blocks"]
    return {
        "bytes": sum(sums.values()),
        "blocks": sum(counts.values()),
        "lines": [
            {"line": line, "bytes": size, "blocks": line_blocks[line]}
            for line, size in lines.most_common(MOST)
        ],
        "stacks": groups[:MOST],
    }


def state(snapshot, stacks):
    """Returns the live blocks at the end, as the segments list them."""
    live, rounded, reserved = [], [], 0
    for segment in snapshot["segments"]:
        reserved += segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                stack = key_of(block.get("frames", ()))
                live.append((block.get("requested_size", block["size"]), stack))
                rounded.append((block["size"], stack))
    return {
        "reserved": reserved,
        "requested": by_stack(live, stacks),
        "rounded": by_stack(rounded, stacks),
    }


def before(trace, blocks, free):
    """Returns the blocks that were live before the trace: freed or still live, but not allocated in it."""
    live, found = set(), {}
    for entry in trace:
        if entry["action"] == "alloc":
            live.add(entry["addr"])
        elif entry["action"] == free:
            if entry["addr"] in live:
                live.discard(entry["addr"])
            else:
                found.setdefault(entry["addr"], (entry["size"], ()))
    for address, block in blocks.items():
        if address not in live:
            found.setdefault(address, block)
    return found


def end_blocks(snapshot):
    """Returns the blocks of device 0 that no call has freed, by address."""
    blocks = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and segment.get("device", 0) == 0:
                size = block.get("requested_size", block["size"])
                blocks[block.get("address", address)] = (size, key_of(block.get("frames", ())))
            address += block["size"]
    return blocks


def peak(trace, blocks, stacks, free):
    """Replays the trace, in which the action `free` ends a block.

    Returns the peak, and the live blocks of the peak and of each failed request.
    """
    live = before(trace, blocks, free)
    began = sum(size for size, _ in live.values())
    total = most = began
    at, failures = -1, []
    for number, entry in enumerate(trace):
        if entry["action"] == "alloc":
            live[entry["addr"]] = (entry["size"], key_of(entry.get("frames", ())))
            total += entry["size"]
        elif entry["action"] == free and entry["addr"] in live:
            total -= live.pop(entry["addr"])[0]
        elif entry["action"] == "oom":
            stack = key_of(entry.get("frames", ()))
            failure = {"wanted": entry["size"], "line": stacks.line(stack)}
            failure["device_free"] = entry.get("device_free")
            failures.append(failure | {"live": by_stack(live.values(), stacks)})
        if total > most:
            most, at, held = total, number, list(live.values())
    held = held if at >= 0 else list(before(trace, blocks, free).values())
    return {
        "live_before": began,
        "bytes": most,
        "event": at,
        "live": by_stack(held, stacks),
        "failures": failures[-10:],
        "failure_count": len(failures),
    }


def of(snapshot, files):
    """Returns the facts about a snapshot. `files` are the user's files."""
    stacks = Stacks(files)
    trace = next((trace for trace in snapshot["device_traces"] if trace), [])
    actions = Counter(entry["action"] for entry in trace)
    recorded = [key_of(entry.get("frames", ())) for entry in trace if entry["action"] == "alloc"]
    distinct = set(recorded)
    lines = Counter(stacks.line(stack) for stack in distinct if stack)
    allocations = Counter(stacks.line(stack) for stack in recorded if stack)
    blocks = end_blocks(snapshot)
    # A block that another stream uses stays active after the program freed it.
    active = peak(trace, blocks, stacks, "free_completed")
    # The recorder may have skipped the requests.
    found = peak(trace, blocks, stacks, "free_requested") if actions["free_requested"] else active
    return {
        "events": len(trace),
        "actions": dict(actions),
        "stacks": len([stack for stack in distinct if stack]),
        "stacks_with_user": sum(count for line, count in lines.items() if line),
        "deepest": max(map(len, distinct), default=0),
        "lines": {
            line or "none": {"stacks": count, "allocations": allocations[line]}
            for line, count in lines.most_common()
        },
        "peak": found,
        "active_peak": active,
        "end": state(snapshot, stacks),
        "settings": snapshot.get("allocator_settings", {}),
    }
