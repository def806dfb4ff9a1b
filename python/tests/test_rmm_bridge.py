"""RMM's resource over the bridge, compiled against the installed RMM, on the simulated device."""

import gc
import shutil
import subprocess
import sys
import threading

import pytest

import millpond
import millpond.rmm
from millpond import rmm_bridge

SIZE = 1000


def in_use():
    return millpond.mr.get_current_device_resource().counts()["bytes_in_use"]


@pytest.fixture(scope="module")
def theirs():
    module = pytest.importorskip("rmm", reason="SKIPPED: rmm is not installed")
    pytest.importorskip("Cython", reason="SKIPPED: Cython is not installed")
    if shutil.which("c++") is None:
        pytest.skip("SKIPPED: there is no c++ on this machine")
    return module


@pytest.fixture
def made(theirs):
    assert rmm_bridge.build().exists()
    assert millpond.rmm.bridge().startswith("compiled: ")
    return millpond.rmm.resource("cuda+pool")


def test_the_bridge_is_a_resource_of_rmms(made, theirs):
    assert isinstance(made, theirs.mr.DeviceMemoryResource)
    assert not isinstance(made, theirs.mr.CallbackMemoryResource)
    ptr = made.allocate(SIZE)
    assert ptr % 256 == 0 and in_use() >= SIZE
    made.deallocate(ptr, SIZE)
    assert in_use() == 0
    assert made.allocate(SIZE) == ptr, "the pool hands the block out again"
    made.deallocate(ptr, SIZE)


def test_rmms_adaptors_stand_on_it(made, theirs):
    tracking = theirs.mr.TrackingResourceAdaptor(theirs.mr.StatisticsResourceAdaptor(made))
    ptr = tracking.allocate(SIZE)
    assert tracking.get_allocated_bytes() == SIZE and in_use() >= SIZE
    tracking.deallocate(ptr, SIZE)
    assert in_use() == 0


def test_memory_that_is_out_is_rmms_error(made, theirs):
    with pytest.raises(MemoryError, match="out of memory for 1PiB.*in `cuda.pool`"):
        made.allocate(1 << 50)
    # Only RMM's own C++ class reaches the function of its adaptor.
    asked = []
    watched = theirs.mr.FailureCallbackResourceAdaptor(made, lambda size: bool(asked.append(size)))
    with pytest.raises(MemoryError):
        watched.allocate(1 << 50)
    assert asked == [1 << 50]


def test_objects_and_their_class_are_counted_alike(made):
    def users_after(objects):
        several = [millpond.rmm.resource() for _ in range(objects)]
        del several
        millpond.rmm._kept.clear()
        gc.collect()
        return sys.getrefcount(type(made))

    first = users_after(1)
    assert users_after(50) == first, "else the class ends before its objects, or never"


def test_threads_allocate_without_the_gil(made):
    def work():
        for _ in range(2000):
            made.deallocate(made.allocate(SIZE), SIZE)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert in_use() == 0


def test_a_bridge_that_another_user_can_replace_is_not_loaded(tmp_path, monkeypatch):
    file = tmp_path / "cache" / "rmm" / "_rmm_resource.so"
    file.parent.mkdir(parents=True)
    file.write_text("no library")
    monkeypatch.setattr(rmm_bridge, "path", lambda: file)
    for place in (file, file.parent, file.parent.parent):
        usual = place.stat().st_mode
        place.chmod(usual | 0o002)
        with pytest.warns(UserWarning, match="another user can replace RMM's bridge"):
            assert rmm_bridge.load() is None
        place.chmod(usual & ~0o022)
    with pytest.warns(UserWarning, match="RMM's bridge cannot be loaded"):
        assert rmm_bridge.load() is None


def test_a_null_handle_is_refused(made):
    with pytest.raises(ValueError, match="millpond.rmm.resource"):
        type(made)(0)


def test_use_takes_the_bridge_and_the_process_ends_in_peace(made):
    program = (
        "import rmm, millpond.rmm\n"
        "before = rmm.mr.get_per_device_resource(0)\n"
        "made = millpond.rmm.use('cuda+pool')\n"
        "assert rmm.mr.get_per_device_resource(0) is made\n"
        "millpond.rmm.disable()\n"
        "assert rmm.mr.get_per_device_resource(0) is before\n"
        "left = millpond.rmm.use().allocate(1000)\n"
        "print(type(made).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "MillpondMemoryResource\n", "")


def test_without_the_bridge_functions_of_python_serve(theirs, monkeypatch, tmp_path):
    monkeypatch.setenv("MILLPOND_RMM_BRIDGE", str(tmp_path))
    assert millpond.rmm.bridge().startswith("callback: `python -m millpond.rmm_bridge build`")
    made = millpond.rmm.resource("cuda+pool")
    assert isinstance(made, theirs.mr.CallbackMemoryResource)
    ptr = made.allocate(SIZE)
    assert in_use() >= SIZE
    made.deallocate(ptr, SIZE)
    assert in_use() == 0
    with pytest.raises(MemoryError, match="out of memory"):
        made.allocate(1 << 50)


def test_a_bridge_that_cannot_be_loaded_is_named(theirs, monkeypatch, tmp_path):
    monkeypatch.setenv("MILLPOND_RMM_BRIDGE", str(tmp_path))
    broken = rmm_bridge.path()
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no library")
    with pytest.warns(UserWarning, match="cannot be loaded"):
        made = millpond.rmm.resource("cuda+pool")
    assert isinstance(made, theirs.mr.CallbackMemoryResource)


def test_what_is_missing_is_named(theirs, monkeypatch, tmp_path):
    monkeypatch.setenv("MILLPOND_RMM_BRIDGE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="no-such-compiler.*set CXX"):
        rmm_bridge.build()
    monkeypatch.setattr(rmm_bridge, "_HEADERS", ("no_such_header.h",))
    with pytest.raises(RuntimeError, match="no_such_header.h were not found: pip install"):
        rmm_bridge.build()
    assert not rmm_bridge.path().exists(), "nothing is left that could be loaded"


def test_the_command_says_where_the_bridge_is(made):
    def say(*arguments):
        command = [sys.executable, "-m", "millpond.rmm_bridge", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    assert say("build").stdout.strip() == say("show").stdout.strip() == str(rmm_bridge.path())
    assert say().returncode == 1 and "build|show" in say().stderr
