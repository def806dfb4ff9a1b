"""Reads the states that the models in Rust print, and knows the limits of the checker's scales."""

import json
import re

import clients
import pool

# Rust's text of a value, as JSON.
TO_JSON = [
    (re.compile(r"(\w+)\((\d+)\)"), r'{"is": "\1", "of": \2}'),
    (re.compile(r"(\w+) \{ "), r'{"is": "\1", '),
    (re.compile(r"(\w+): "), r'"\1": '),
    (re.compile(r"(?<![\"\w])([A-Z]\w*)"), r'{"is": "\1"}'),
]


def read(text):
    for pattern, json_text in TO_JSON:
        text = pattern.sub(json_text, text)
    return json.loads(text)


def tables_of_pool(state, sizes):
    """Fields that a thread or block does not use are missing."""
    fields = {name: {} for name in pool.FIELDS}
    streams = range(sizes["stream"])

    def put(at, **values):
        for name, value in values.items():
            if name in ("notes", "seen", "recorded_seen", "before", "covered", "held"):
                second = range(sizes[pool.FIELDS[name][0][1]])
                is_bits = isinstance(value, int)
                fields[name].update({(at, i): bool(value >> i & 1) if is_bits else value[i] for i in second})
            else:
                fields[name][at,] = value

    for at, it in zip(streams, state["streams"], strict=False):
        names = ("exists", "epoch", "has_event", "recorded", "recorded_seen", "seen")
        put(at, known=it["is_known"], **{name: it[name] for name in names})
    for at, it in zip(range(sizes["block"]), state["blocks"], strict=False):
        place = it["place"]
        put(at, place=place["is"].lower(), done=it["is_done"])
        put(at, **{name: it[name] for name in ("before", "covered", "held")})
        if "owner" in place:
            put(at, owner=place["owner"], freed=place["epoch"])
    for at, it in zip(range(sizes["thread"]), state["calls"], strict=False):
        put(at, call=it["is"].lower())
        if "stream" in it:
            put(at, of=it["stream"], ends=it["epoch"], notes=it["seen"])
        if "epochs" in it:
            put(at, notes=it["epochs"])
        if "is_made" in it:
            put(at, made=it["is_made"])
        if "is_first" in it:
            put(at, first=it["is_first"], reached=it["is_reached"])
        if "stage" in it:
            put(at, stage=it["stage"]["is"].lower())
        if it.get("stage", {}).get("is") == "Waits":
            put(at, waiter=it["stage"]["of"])
    return fields


def tables_of_clients(state, sizes):
    """Each field is a table already."""

    def entries(index, value, at=()):
        if not index:
            return {at: value["is"].lower() if isinstance(value, dict) else value}
        return {
            key: it
            for number, part in enumerate(value)
            for key, it in entries(index[1:], part, (*at, number)).items()
        }

    return {name: entries(index, state[name]) for name, (index, _) in clients.FIELDS.items()}


TABLES = {pool: tables_of_pool, clients: tables_of_clients}


def sizes_of(state):
    """Returns how many streams, blocks and threads a state has."""
    names = {"stream": ("streams", "exists"), "block": ("blocks", "place"), "thread": ("calls", "call")}
    return {sort: len(next(state[name] for name in some if name in state)) for sort, some in names.items()}


def tables(model, text, sizes):
    """Returns the table of each field of a state."""
    return TABLES[model](read(text), sizes)


def is_within(model, logic, scale, name, named, s, after):
    """The checker's scale of the pool takes steps away: it limits threads and epochs."""
    if model is not pool:
        return True
    if name in ("Free", "BeginRecord", "Pick", "BeginDevice"):
        busy = sum(s.call(it) != "idle" for it in range(logic.sizes["thread"]))
        busy += sum(s.place(it) == "freeing" for it in range(logic.sizes["block"]))
        if busy >= scale["threads"]:
            return False
    if name == "BeginRecord" and s.epoch(named[1]) >= scale["epochs"]:
        return False
    streams = range(logic.sizes["stream"])
    return name != "BeginDevice" or all(after.epoch(it) <= scale["epochs"] for it in streams)
