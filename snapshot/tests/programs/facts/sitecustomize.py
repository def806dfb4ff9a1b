"""Writes PyTorch's own counters when a program ends, to the file that the variable FACTS names.

Python imports this module before the program, so that the program needs no line for it.
"""

import atexit
import json
import os
import sys

# Processes that the program starts must not write to the same file.
PATH = os.environ.pop("FACTS", None)

COUNTERS = [
    "allocated_bytes.all.peak",
    "allocated_bytes.all.current",
    "active_bytes.all.peak",
    "requested_bytes.all.peak",
    "reserved_bytes.all.peak",
    "reserved_bytes.all.current",
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
]


def write():
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    stats = torch.cuda.memory_stats()
    facts = {name: stats.get(name) for name in COUNTERS}
    facts["max_memory_allocated"] = torch.cuda.max_memory_allocated()
    facts["max_memory_reserved"] = torch.cuda.max_memory_reserved()
    facts["device"] = torch.cuda.get_device_name()
    facts["device_total"] = torch.cuda.get_device_properties(0).total_memory
    facts["torch"] = torch.__version__
    with open(PATH, "w") as file:
        json.dump(facts, file)


if PATH is not None:
    atexit.register(write)
