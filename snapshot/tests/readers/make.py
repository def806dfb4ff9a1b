"""Writes memory.prof.gz and two_devices.prof.gz, in the form of jax.profiler.save_device_memory_profile."""

import gzip


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def profile(samples):
    """Each sample: count, bytes in all, kind, device or None, frames (function, file, line)."""
    strings, functions, locations = [""], {}, {}

    def string(text):
        if text not in strings:
            strings.append(text)
        return strings.index(text)

    def message(*fields):
        return b"".join(field(number, value) for number, value in fields)

    types = [message((1, string(kind)), (2, string(unit))) for kind, unit in
             [("allocations", "count"), ("space", "bytes")]]
    for name in ["kind", "buffer", "executable", "device"]:
        string(name)
    out = []
    for count, size, kind, device, frames in samples:
        places = b""
        for function, file, line in frames:
            functions.setdefault((function, file), len(functions) + 1)
            locations.setdefault((function, file, line), len(locations) + 1)
            places += varint(locations[function, file, line])
        sample = message((1, places), (2, varint(count) + varint(size)))
        sample += field(3, message((1, string("kind")), (2, string(kind))))
        if device is not None:
            sample += field(3, message((1, string("device")), (2, string(device))))
        out.append(sample)
    lines = [message((1, number), (4, message((1, functions[function, file]), (2, line))))
             for (function, file, line), number in locations.items()]
    names = [message((1, number), (2, string(function)), (3, string(function)), (4, string(file)), (5, 1))
             for (function, file), number in functions.items()]
    parts = [(1, types), (2, out), (4, lines), (5, names), (6, [text.encode() for text in strings])]
    return b"".join(field(number, part) for number, list_ in parts for part in list_)


step, init = ("step", "/app/run.py", 61), ("init", "/app/run.py", 12)
main = ("<module>", "/app/run.py", 90)
one = [(3, 3 << 20, "buffer", "cuda:0", [init, main]), (1, 4096, "buffer", "cuda:0", [step, main]),
       (1, 70000, "executable", None, [step, main])]
two = [(2, 2048, "buffer", "StreamExecutorGpuDevice(device_kind=H100, id=0)", []),
       (1, 1 << 30, "buffer", "StreamExecutorGpuDevice(device_kind=H100, id=1)", [step])]
for name, samples in [("memory", one), ("two_devices", two)]:
    with open(f"{name}.prof.gz", "wb") as file:
        file.write(gzip.compress(profile(samples), mtime=0))
