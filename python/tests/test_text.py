"""Paths and sizes are data: their way between a program, a stack's text and the file system."""

import os
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millpond
from millpond import mr

MIB = 1 << 20


def child(program, *arguments, cwd=None, **variables):
    """Run a program in another process, and return the process."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("LOG_FILE")}
    environment = {os.fsencode(k): os.fsencode(v) for k, v in (environment | variables).items()}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)


def files_in(folder):
    """Return the names of all files below a folder, as bytes."""
    folder = os.fsencode(folder)
    return sorted(
        os.path.relpath(os.path.join(root, name), folder)
        for root, _, names in os.walk(folder)
        for name in names
    )


# --- Paths ---

NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"/" not in name and b"\0" not in name and name.strip(b".")
)


@settings(max_examples=150, deadline=None)
@given(NAMES)
@example(b"results+v2")
@example(b"run,flush=async")
@example(b"run,columns=extended")
@example(b"x+statistics")
@example(b'a "quoted" (name)')
@example(b" blank ")
@example(b"two\nlines\t")
@example(b"\xff\xfe")
@example(b"{x}{pid{rank")
@example("ü{x".encode())
def test_a_path_is_never_read_as_a_stack(tmp_path_factory, name):
    folder = os.fsencode(tmp_path_factory.mktemp("log"))
    name = name.replace(b"}", b"")  # another test covers names in braces
    if not name.strip(b"."):
        return
    for cut in (b"results", name.split(b"+")[0].split(b",")[0]):
        if cut and cut != name and cut not in (b".", b".."):
            with open(os.path.join(folder, cut), "wb") as precious:
                precious.write(b"precious")
    before = files_in(folder)
    for given_name in (os.fsdecode(os.path.join(folder, name)), os.path.join(folder, name)):
        log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), given_name)
        log.deallocate(log.allocate(100), 100)
        base, extension = os.path.splitext(os.path.normpath(os.path.join(folder, name)))
        file = base + b".dev%d" % log.device.ordinal + extension
        assert os.fsencode(log.get_file_name()) == file
        assert files_in(folder) == sorted([*before, os.path.basename(file)])
        again = millpond.stack(log.text)
        assert (again.text, again.get_file_name()) == (log.text, log.get_file_name())
        del log, again
    for other in before:
        with open(os.path.join(folder, other), "rb") as file:
            assert file.read() == b"precious"


def test_names_in_braces_stand_for_process_rank_and_device(tmp_path, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "7")
    monkeypatch.delenv("RANK", raising=False)
    name = tmp_path / "a" / "b" / "log.{pid}.{rank}.{device}.{other}.csv"
    log = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), name)
    wanted = tmp_path / "a" / "b" / f"log.{os.getpid()}.7.{log.device.ordinal}.{{other}}.csv"
    assert log.get_file_name() == str(wanted) and wanted.exists()
    assert str(name) in log.text, "a stack prints what was said"
    literal = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), tmp_path / "{x7b}pid}.csv")
    assert literal.get_file_name() == str(tmp_path / f"{{pid}}.dev{log.device.ordinal}.csv")


def test_the_folder_of_the_process_is_data_too(tmp_path):
    for folder in ("c++", "a,b=(1)", "{pid}", 'q"'):
        (tmp_path / folder).mkdir()
    for name in ("c", "a"):
        (tmp_path / name).write_text("precious")
    program = (
        "import millpond; millpond.enable_logging('log.csv'); millpond.DeviceBuffer(size=9);"
        "print(list(millpond.get_log_filenames().values()))"
    )
    for folder in ("c++", "a,b=(1)", "{pid}", 'q"'):
        done = child(program, cwd=tmp_path / folder)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / folder / "log.dev0.csv").exists(), done.stdout
    assert (tmp_path / "c").read_text() == (tmp_path / "a").read_text() == "precious"


def test_variables_name_any_path(tmp_path):
    program = "import millpond; millpond.stack('cuda+logging')"
    for variable in ("MILLPOND_LOG_FILE", "RMM_LOG_FILE"):
        path = os.fsencode(tmp_path) + b"/new/" + variable.encode() + b'+a,"b"(\xff) .csv'
        done = child(program, **{variable: os.fsdecode(path)})
        assert done.returncode == 0 and os.path.exists(path), done.stderr
    path = os.fsencode(tmp_path) + b"/x+\xff,\n.csv"
    program = "import millpond; millpond.DeviceBuffer(size=7); print(millpond.get_log_filenames())"
    done = child(program, MILLPOND_STACK=os.fsdecode(b'cuda+logging:file="' + path + b'"'))
    assert done.returncode == 0 and os.path.exists(path), done.stderr


def test_processes_of_a_job_write_a_log_each(tmp_path):
    program = (
        "import sys, multiprocessing as mp\n"
        "def work(number):\n"
        "    import millpond\n"
        "    kept = [millpond.DeviceBuffer(size=1000 + number) for _ in range(5)]\n"
        "    return number\n"
        "if __name__ == '__main__':\n"
        "    import millpond\n"
        "    kept = millpond.DeviceBuffer(size=5000)\n"
        "    children = [mp.get_context('spawn').Process(target=work, args=(n,)) for n in range(2)]\n"
        "    [child.start() for child in children]; [child.join() for child in children]\n"
        "    sys.exit(max(child.exitcode for child in children))\n"
    )
    script = tmp_path / "job.py"
    script.write_text(program)
    environment = os.environ | {"MILLPOND_STACK": f"cuda+pool+logging:file={tmp_path}/log.{{pid}}.csv"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    logs = list(tmp_path.glob("log.*.csv"))
    assert len(logs) == 3 and all("allocate" in log.read_text() for log in logs)


def test_a_stack_that_cannot_be_built_leaves_the_log_of_before(tmp_path):
    log = tmp_path / "precious"
    log.write_text("rows")
    for rest in ("pol", "pool:initial=1000GiB", "pool:max=50", "limiting", "logging:file=/"):
        with pytest.raises((millpond.MillpondError, MemoryError)):
            millpond.stack(f"cuda+logging:file={log}+{rest}")
        assert log.read_text() == "rows", rest
    with pytest.raises(ValueError):
        millpond.stack(f"cuda+logging:file={log}\0.csv")
    with pytest.raises(ValueError):
        mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), f"{log}\0.csv")
    assert files_in(tmp_path) == [b"precious"]


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise RuntimeError", "keep.append(m)"])
def test_buffered_rows_survive_a_normal_end(tmp_path, end):
    log = tmp_path / "log.csv"
    program = (
        "import millpond, sys, builtins\n"
        "keep = builtins.keep = []\n"
        f"m = millpond.stack('cuda+pool+logging:flush=buffered,file={log}')\n"
        "millpond.mr.set_current_device_resource(m)\n"
        "for _ in range(10): millpond.DeviceBuffer(size=100, mr=m)\n"
    )
    child(program + end)
    assert len(log.read_text().splitlines()) == 21


# --- Sizes ---


@pytest.mark.parametrize("size", ["50", "1", "8", "512", " 40 ", "0.5"])
def test_a_small_number_without_a_unit_is_refused(size):
    upstream = mr.CudaMemoryResource()
    for build in (
        lambda: mr.PoolMemoryResource(upstream, size),
        lambda: mr.PoolMemoryResource(upstream, maximum_pool_size=size),
        lambda: mr.LimitingResourceAdaptor(upstream, size),
        lambda: mr.ArenaMemoryResource(upstream, size),
        lambda: mr.CudaAsyncMemoryResource(size),
        lambda: mr.CudaAsyncMemoryResource(release_threshold=size),
        lambda: mr.SamHeadroomMemoryResource(size),
        lambda: mr.parse_bytes(size),
        lambda: millpond.stack(f"cuda+pool:max={size}"),
        lambda: millpond.stack(f"cuda+limiting:limit={size}"),
        lambda: millpond.Device(f"sim:{size}"),
    ):
        with pytest.raises(ValueError, match="did you mean"):
            build()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 40))
def test_an_int_is_bytes(size):
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), size)
    assert limited.get_allocation_limit() == size
    assert millpond.stack(limited.text).get_allocation_limit() == size


def test_a_stack_prints_what_was_said():
    cuda = mr.CudaMemoryResource()
    for said in ("33%", "12.5%", "3GiB"):
        assert mr.LimitingResourceAdaptor(cuda, said).text == f"cuda+limiting:limit={said}"
    pool = mr.PoolMemoryResource(cuda, "1%", "33%")
    assert pool.text == "cuda+pool:initial=1%,max=33%" == millpond.stack(pool.text).text
    for size in ("1GiB+statistics", "1GiB,max=2GiB", "many"):
        with pytest.raises(ValueError):
            mr.PoolMemoryResource(cuda, size)


# --- Equal stacks behave equally ---

PAIRS = [
    (lambda cuda, path: mr.PoolMemoryResource(cuda, "4MiB", "64MiB"), "pool:initial=4MiB,max=64MiB"),
    (lambda cuda, path: mr.ArenaMemoryResource(cuda, "4MiB"), "arena:size=4MiB"),
    (
        lambda cuda, path: mr.ArenaMemoryResource(cuda, "4MiB", path),
        "arena:size=4MiB,dump_log_on_failure={path}",
    ),
    (
        lambda cuda, path: mr.FixedSizeMemoryResource(cuda, 4096, 2),
        "fixed_size:block_size=4KiB,preallocate=2",
    ),
    (lambda cuda, path: mr.BinningMemoryResource(cuda, 18, 20), "binning:min=18,max=20"),
    (lambda cuda, path: mr.LimitingResourceAdaptor(cuda, "50%"), "limiting:limit=50%"),
    (
        lambda cuda, path: mr.BudgetResourceAdaptor(cuda, "a, b", "50%", priority=2, wait=1),
        'budget:name="a, b",limit=50%,priority=2,wait=1s',
    ),
    (lambda cuda, path: mr.StatisticsResourceAdaptor(cuda), "statistics"),
    (lambda cuda, path: mr.TrackingResourceAdaptor(cuda, True), "tracking:stacks=on"),
    (lambda cuda, path: mr.PrefetchResourceAdaptor(cuda), "prefetch"),
    (lambda cuda, path: mr.ThreadSafeResourceAdaptor(cuda), "thread_safe"),
    (lambda cuda, path: mr.AlignedResourceAdaptor(cuda, 512), "aligned:alignment=512"),
    (lambda cuda, path: mr.RetryResourceAdaptor(cuda, 0.2), "retry:timeout=200ms"),
    (lambda cuda, path: mr.FallbackResourceAdaptor(cuda, "managed"), "fallback:to=(managed)"),
]


def report(resource):
    """Return the report of a stack's memory, without the device's part."""
    data = millpond.memory_report(resource).data
    return data["stack"], data["layers"]


def answer(resource, name):
    """Return the value of a resource's attribute, or the class of its error."""
    try:
        value = getattr(resource, name)
        return value() if callable(value) else value
    except (AttributeError, millpond.UnsupportedError) as error:
        return type(error)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1])
def test_a_layer_is_the_same_from_text_and_from_its_class(pair, tmp_path):
    construct, text = pair
    path = str(tmp_path / 'dump+"1".txt')
    base = "managed" if text == "prefetch" else "cuda"
    made = construct(millpond.stack(base), path)
    read = millpond.stack(f"{base}+" + text.format(path='"' + path.replace('"', '""') + '"'))
    assert type(made) is type(read) is not mr._Stack
    assert made.text == read.text
    for resource in (made, read):
        below = resource.upstream_mr
        assert below is resource.upstream_mr and type(below) is mr._BY_LAYER[base]
        assert below.text == base and resource.get_upstream() is below
        resource.deallocate(resource.allocate(1000), 1000)
    for name in ("get_allocated_bytes", "get_allocation_limit", "pool_size", "bin_mrs", "allocation_counts"):
        assert answer(made, name) == answer(read, name), name
    assert report(made) == report(read)


def test_a_log_from_text_has_what_a_log_of_the_class_has(tmp_path):
    made = mr.LoggingResourceAdaptor(mr.CudaMemoryResource(), tmp_path / "made.csv")
    text = f'cuda+logging:file="{tmp_path}/a+b.csv"'
    read = millpond.stack(text)
    assert type(made) is type(read)
    for log in (made, read):
        log.allocate(100)
        log.flush()
        assert "allocate" in open(log.get_file_name()).read()
        assert type(log.upstream_mr) is mr.CudaMemoryResource
    millpond.reinitialize(stack=text.replace("a+b", "c+d") + "+statistics")
    # Other tests of the process may have named more devices.
    device, path = millpond.Device().ordinal, str(tmp_path / "c+d.csv")
    try:
        assert millpond.get_log_filenames()[device] == path
        current = mr.get_current_device_resource()
        assert type(current) is mr.StatisticsResourceAdaptor
        assert type(current.upstream_mr) is mr.LoggingResourceAdaptor
        millpond.disable_logging()
        assert millpond.get_log_filenames()[device] == path, "it goes on"
    finally:
        millpond.reinitialize()
    millpond.reinitialize(stack=text.replace("a+b", "e"))
    millpond.disable_logging()
    assert mr.get_current_device_resource().text == "cuda"


def test_a_hook_can_be_registered_by_a_decorator():
    calls = []

    @millpond.register_reinitialize_hook
    def hook():
        calls.append(1)

    millpond.reinitialize()
    millpond.unregister_reinitialize_hook(hook)
    assert calls == [1] and callable(hook)


def test_bins_from_text_can_be_asked_and_added_to():
    bins = millpond.stack("cuda+binning:bins=64KiB/1MiB(cuda+pool)")
    assert [type(of_bin) for of_bin in bins.bin_mrs] == [mr.PoolMemoryResource]
    bins.add_bin(4 * MIB, mr.StatisticsResourceAdaptor(mr.CudaMemoryResource()))
    assert bins.text == "cuda+binning:bins=64KiB/1MiB(cuda+pool)/4MiB(cuda+statistics)"
    bins.deallocate(bins.allocate(3 * MIB), 3 * MIB)
    assert bins.bin_mrs[1].allocation_counts.total_count == 1
