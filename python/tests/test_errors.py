"""Errors speak Python: they contain no Rust terms."""

import functools
import re

import pytest
from conftest import needs

import millpond
from millpond import mr

#: Terms that mean nothing to a reader who does not know Rust.
RUST = re.compile(
    r"\b(Arc|Box|Rc|Vec|StreamRef|DriverHandle|AnyResource|SimDevice|usize|u64|Result)\b"
    r"|\b(Err|Ok|Some)\(|&mut|&self|::|os error|panicked|unwrap|invalid digit found"
)

WRONG_STACKS = [
    "",
    "+",
    "cuda+",
    "pool",
    "cuda+cuda",
    "cuda+pol",
    "cuda+pool:max",
    "cuda+pool:max=",
    "cuda+pool:max=x",
    "cuda+pool:max=-1",
    "cuda+pool:max=110%",
    "cuda+pool:max=99999999999999999999999",
    "cuda+pool:max=1TiB",
    "cuda+pool:initial=2GiB,max=1GiB",
    "cuda+pool:max=1GiB,max=2GiB",
    "cuda+pool:maxx=1GiB",
    "cuda+pool:pages=maybe",
    "cuda+pool:reuse=all",
    "cuda+pool:decay=soon",
    "cuda+pool:share=all",
    "managed+pool:pages=on",
    "cuda+arena:size=x",
    "cuda+arena:size=1TiB",
    "cuda+fixed_size:block_size=0",
    "cuda+fixed_size:blocks=x",
    "cuda+binning:bins=0",
    "cuda+binning:bins=x/y",
    "cuda+binning:min=70,max=80",
    "cuda+binning:min=x",
    "cuda+fallback",
    "cuda+fallback:to=(x)",
    "cuda+fallback:to=(cuda",
    "cuda+limiting",
    "cuda+limiting:limit=x",
    "cuda+budget",
    "cuda+budget:name=a",
    "cuda+budget:name=a,limit=1MiB,zero=x",
    "cuda+aligned:alignment=3",
    "cuda+aligned:threshold=x",
    "cuda+retry:timeout=x",
    "cuda+retry:timeout=-1s",
    "cuda+tracking:stacks=x",
    "cuda+logging:file=/proc/nowhere/log.csv",
    "cuda+logging:file=/dev/null,columns=x",
    "cuda+logging:file=/dev/null,flush=x",
    "cuda+plan:file=/proc/nowhere.plan",
    "cuda+plan",
    "cuda+plan:share=on",
    "cuda_async:initial=1TiB",
    "cuda_async:max=x",
    "cuda_async:handles=x",
    "cuda_async:release_threshold=x",
    "cuda_async_view:pool=x",
    "sam_headroom:headroom=x",
    "(" * 300,
]


def _stack(text):
    return lambda: millpond.stack(text)


def _pop():
    mr.StatisticsResourceAdaptor(mr.CudaMemoryResource()).pop_counters()


WRONG_CALLS = {
    "a device that is not there": lambda: millpond.Device.find("sim:99"),
    "a GPU that is not there": lambda: millpond.Device.find("cuda:99"),
    "a device that is none": lambda: millpond.Device.find("gpu"),
    "a simulated device of no size": lambda: millpond.Device.find("sim:x"),
    "a profile that is not there": lambda: millpond.Device.find("sim:/proc/nowhere.toml"),
    "an alignment of 3": lambda: millpond.stack("cuda").allocate(8, alignment=3),
    "an alignment of a fixed size": lambda: millpond.stack("cuda+fixed_size").allocate(8, alignment=4096),
    "a stream that is none": lambda: millpond.DeviceBuffer(size=8, stream=0xDEAD0),
    "a stream of another type": lambda: millpond.DeviceBuffer(size=8, stream="s"),
    "a resource of another type": lambda: millpond.DeviceBuffer(size=8, mr=3),
    "counts of plain memory": lambda: millpond.stack("cuda").counts(),
    "a level that was not begun": _pop,
    "bytes of nothing": lambda: millpond.to_device(None),
    "an import of nothing": lambda: millpond.from_dlpack(object()),
    "a slice with steps": lambda: millpond.to_device(b"abcd")[::2],
    "a size of 2^70": lambda: millpond.DeviceBuffer(size=1 << 70),
    "a negative size": lambda: millpond.DeviceBuffer(size=-1),
    "a limit of text": lambda: mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), "x"),
    "a bin without bytes": lambda: mr.BinningMemoryResource(mr.CudaMemoryResource()).add_bin(0),
}
if not millpond.Device().is_simulated:
    # The driver itself crashes if a pointer is not a stream.
    del WRONG_CALLS["a stream that is none"]
STACKS = ["cuda", "managed", "host", "pinned_host", "cuda_async", "cuda_async:max=1GiB", "cuda+pool:max=1GiB",
          "cuda+fixed_size", "cuda+limiting:limit=1GiB", "cuda+pool+tracking", "cuda+pool+retry:timeout=1ms"]


def _refused(call):
    """Return the texts of a call's exception. The call may also succeed."""
    try:
        call()
    except Exception as error:  # every class of exception is checked
        return [str(error), *error.args, getattr(error, "report", ""), str(error.__cause__ or "")]
    return []


@pytest.mark.parametrize("text", WRONG_STACKS)
def test_a_wrong_stack_is_refused_in_words_of_python(text):
    texts = _refused(_stack(text))
    assert texts and not [it for it in texts if RUST.search(str(it))], texts


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_a_wrong_call_is_refused_in_words_of_python(call):
    texts = _refused(call)
    assert texts and not [it for it in texts if RUST.search(str(it))], texts


@pytest.mark.parametrize("text", STACKS)
def test_memory_that_is_out_is_told_in_words_of_python(text):
    resource = needs(text)
    for size in (100 << 30, 1 << 50, (1 << 64) - 1):
        for alignment in (0, 1 << 20, 1 << 63):
            texts = _refused(functools.partial(resource.allocate, size, alignment=alignment))
            assert not [it for it in texts if RUST.search(str(it))], texts


def test_the_words_are_found():
    for text in ("keep the Arc alive", "call debug_log::init", "it is Err(1)", "no file (os error 2)"):
        assert RUST.search(text)
    assert not RUST.search("no file [Errno 2]: ask for less, or use None")
