"""The headers of the package. A C++ library that is compiled with them shares the package's resources."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

import millpond

SOURCE = """
#include <millpond/millpond.hpp>
#include <cstdio>

extern "C" int default_text(int ordinal, char *text, std::size_t room) {
    millpond_device *found = nullptr;
    millpond::check(millpond_device_find(ordinal, true, &found));
    const auto current = millpond::stack::current(millpond::device(found));
    const millpond::buffer buffer(current, 1000);
    return std::snprintf(text, room, "%s %llu", current.text().c_str(),
                         static_cast<unsigned long long>(current.statistics().bytes_requested));
}
"""


def test_the_folder_of_headers_is_in_the_package():
    include = Path(millpond.get_include())
    assert include.parent == Path(millpond.__file__).parent
    names = {str(path.relative_to(include)) for path in include.rglob("*") if path.is_file()}
    of_cpp = {f"millpond/{name}.hpp" for name in ("millpond", "memory_resource", "thrust")}
    assert names == {"millpond.h"} | of_cpp


def test_a_library_in_cpp_sees_the_default_resource_of_python(tmp_path):
    compiler = shutil.which("c++") or pytest.skip("SKIPPED: there is no C++ compiler")
    source, library = tmp_path / "user.cpp", tmp_path / "user.so"
    source.write_text(SOURCE)
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    files = [f"-I{millpond.get_include()}", source, millpond.library_path(), "-o", library]
    subprocess.run([compiler, *options, *files], check=True)
    device = millpond.Device("sim:1GiB")
    stack = millpond.stack("cuda+pool+statistics", device=device)
    millpond.mr.set_per_device_resource(device, stack)
    user = ctypes.CDLL(str(library))
    text = ctypes.create_string_buffer(100)
    user.default_text(device.ordinal, text, ctypes.c_size_t(len(text)))
    assert text.value == b"cuda+pool+statistics 1000"
