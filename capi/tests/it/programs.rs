//! Builds programs in C and C++ against the files that `install.sh` installs, and runs them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the output of a command that must succeed.
fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{command:?}\n{text}\n{}", String::from_utf8_lossy(&done.stderr));
    text
}

/// Returns whether this program is installed; tests print that they are skipped without it.
fn is_there(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok_and(|done| done.status.success());
    if !is_there {
        println!("SKIPPED: {program} is not installed");
    }
    is_there
}

/// Installs the library that was built for this test.
fn installed(prefix: &Path) {
    let test = std::env::current_exe().expect("a test knows its file");
    let library = test.with_file_name("libmillpond_c.so");
    assert!(library.exists(), "cargo builds the library next to its tests: {}", library.display());
    output(Command::new(root().join("install.sh")).arg(prefix).arg(library));
}

/// Returns the flags that pkg-config prints for the installed package.
fn flags(prefix: &Path) -> Vec<String> {
    let mut config = Command::new("pkg-config");
    config.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--cflags", "--libs", "millpond"]);
    output(&mut config).split_whitespace().map(str::to_owned).collect()
}

/// Builds an example, runs it and returns its output.
fn built_and_run(
    prefix: &Path,
    compiler: &str,
    options: &[&str],
    source: &str,
    arguments: &[&str],
) -> String {
    let program = prefix.join(source.replace(['.', '/'], "_"));
    let mut build = Command::new(compiler);
    build.args(options).args(["-Wall", "-Wextra", "-Werror"]);
    build.arg(root().join("examples").join(source)).arg("-o").arg(&program).args(flags(prefix));
    output(&mut build);
    output(Command::new(program).args(arguments).env("LD_LIBRARY_PATH", prefix.join("lib")))
}

#[test]
fn a_program_in_c_uses_a_pool() {
    if !is_there("cc") || !is_there("pkg-config") {
        return;
    }
    let prefix = tempfile::tempdir().expect("a folder");
    installed(prefix.path());
    let text = built_and_run(prefix.path(), "cc", &["-std=c11", "-Wpedantic"], "pool.c", &["sim:1GiB"]);
    assert!(text.starts_with("the last byte is 7\nout of memory for 1PiB on stream 0x"), "{text}");
    assert!(text.contains(" of sim:0 in `cuda+pool`: ") && text.ends_with("peak 1000 bytes\n"), "{text}");
}

#[test]
fn a_program_in_c_shares_a_pool_of_the_driver() {
    if !is_there("cc") || !is_there("pkg-config") {
        return;
    }
    let prefix = tempfile::tempdir().expect("a folder");
    installed(prefix.path());
    let options = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wpedantic"];
    let text = built_and_run(prefix.path(), "cc", &options, "memory_pool.c", &["sim:1GiB"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "the last byte is 7", "{text}");
    assert!(lines[1].contains("an imported pool cannot allocate"), "{text}");
    let expected = [
        "64 bytes shared the pool",
        "0 bytes in use, at most 1024; threshold 1048576, reuse 0",
        "the host's pool: device 3, host 3; the device's: host 0",
        "the current pool has at most 67108864 bytes",
    ];
    assert_eq!(lines[2..], expected, "{text}");
}

#[test]
fn a_program_in_cpp_owns_a_pool_and_a_buffer() {
    if !is_there("c++") || !is_there("pkg-config") {
        return;
    }
    let prefix = tempfile::tempdir().expect("a folder");
    installed(prefix.path());
    for standard in ["-std=c++17", "-std=c++20"] {
        let options = [standard, "-Wpedantic"];
        let text = built_and_run(prefix.path(), "c++", &options, "stack.cpp", &["sim:1GiB"]);
        let lines = ["the last byte is 7\n1000 bytes in use\nout of memory for 1PiB", "\n3: invalid stack: "];
        assert!(text.starts_with(lines[0]) && text.contains(lines[1]), "{text}");
        let text = built_and_run(prefix.path(), "c++", &options, "../tests/owners.cpp", &[]);
        assert_eq!(text, "every owner freed its memory\n");
    }
}

#[test]
fn errors_are_exceptions_where_cpp_calls() {
    if !is_there("c++") || !is_there("pkg-config") {
        return;
    }
    let prefix = tempfile::tempdir().expect("a folder");
    installed(prefix.path());
    let text = built_and_run(prefix.path(), "c++", &["-std=c++17"], "throwing.cpp", &[]);
    assert!(
        text.starts_with("a block: 1\nCUDA out of memory. out of memory for 1PiB")
            && text.ends_with("std::bad_alloc\n"),
        "{text}"
    );
}

/// Returns the folder of CUDA's files from these wheels, in `target/FOLDER`. `None` if Python or its package
/// index is missing.
fn from_wheels(folder: &str, wheels: &[&str]) -> Option<PathBuf> {
    let test = std::env::current_exe().expect("a test knows its file");
    let folder = test.ancestors().nth(3).expect("below target").join(folder);
    // Several tests share the folder.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let complete = folder.join("complete");
    if !complete.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--upgrade", "--target"]);
        if !pip.arg(&folder).args(wheels).status().is_ok_and(|status| status.success()) {
            println!("SKIPPED: pip cannot install {}", wheels.join(", "));
            return None;
        }
        std::fs::write(complete, "").expect("a file");
    }
    Some(folder.join("nvidia/cu13"))
}

const HEADERS: [&str; 3] =
    ["nvidia-cuda-cccl==13.3.5.0.6", "nvidia-cuda-runtime==13.5.37", "nvidia-cuda-crt==13.5.37"];

/// Returns compiler options for the headers of CCCL and of CUDA's runtime.
fn cccl() -> Option<[String; 2]> {
    let include = from_wheels("cccl", &HEADERS)?.join("include");
    Some([include.join("cccl"), include].map(|path| format!("-isystem{}", path.display())))
}

/// Builds and runs a program over CCCL's headers, with each of these options, in C++17 and C++20.
fn with_cccl(source: &str, options: &[&str], check: impl Fn(&str)) {
    let Some(headers) = cccl().filter(|_| is_there("c++") && is_there("pkg-config")) else { return };
    let prefix = tempfile::tempdir().expect("a folder");
    installed(prefix.path());
    for (standard, option) in [("-std=c++17", options[0]), ("-std=c++20", options[options.len() - 1])] {
        let all = [&headers[0], &headers[1], standard, option];
        check(&built_and_run(prefix.path(), "c++", &all, source, &[]));
    }
}

#[test]
fn a_pool_is_a_memory_resource_of_cccl() {
    with_cccl("memory_resource.cpp", &["-O0"], |text| {
        assert!(text.starts_with("the same block: 1\nout of memory for 1PiB"), "{text}");
        assert!(
            text.contains("\n3: invalid stack: there is no layer `pol`; the layers are cuda, "),
            "{text}"
        );
    });
}

/// The second option makes null mean the thread's own default stream.
const DEFAULT_STREAMS: [&str; 2] = ["-O0", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"];

#[test]
fn vectors_of_thrust_live_in_a_pool() {
    with_cccl("../tests/thrust.cpp", &DEFAULT_STREAMS, |text| {
        assert_eq!(text, "every vector freed its memory\n");
    });
}

#[test]
fn policies_of_thrust_take_temporary_memory_from_a_pool() {
    with_cccl("../tests/policies.cpp", &DEFAULT_STREAMS, |text| {
        assert_eq!(text, "exec_policy 1, exec_policy_nosync 1\n");
    });
}

/// On a GPU, `scripts/gpu-lane` builds and runs the example.
#[test]
fn nvcc_builds_the_example_of_thrust() {
    if !millpond_testkit::size::is_thorough() {
        println!("SKIPPED: runs with MILLPOND_THOROUGH, because nvcc is large and takes a minute");
        return;
    }
    let wheels = [&HEADERS[..], &["nvidia-cuda-nvcc==13.5.37", "nvidia-nvvm==13.5.37"]].concat();
    let Some(cuda) = from_wheels("nvcc", &wheels).filter(|_| is_there("c++") && is_there("pkg-config"))
    else {
        return;
    };
    let prefix = tempfile::tempdir().expect("a folder");
    installed(prefix.path());
    for option in ["--default-stream=legacy", "--default-stream=per-thread"] {
        let mut nvcc = Command::new(cuda.join("bin/nvcc"));
        nvcc.args(["-std=c++17", "-arch=sm_90", "-Werror=all-warnings", option]);
        nvcc.arg(root().join("examples/thrust.cu")).arg("-L").arg(cuda.join("lib"));
        nvcc.arg("-o").arg(prefix.path().join("thrust")).args(flags(prefix.path()));
        output(&mut nvcc);
    }
}

#[test]
fn cmake_finds_the_package() {
    if !is_there("cmake") || !is_there("cc") {
        return;
    }
    let prefix = tempfile::tempdir().expect("a folder");
    installed(prefix.path());
    let (source, build) = (prefix.path().join("source"), prefix.path().join("build"));
    std::fs::create_dir(&source).expect("a folder");
    let lists = format!(
        "cmake_minimum_required(VERSION 3.20)\nproject(test C)\nfind_package(millpond 0.1 REQUIRED)\n\
         add_executable(pool {})\ntarget_link_libraries(pool millpond::millpond)\n",
        root().join("examples/pool.c").display()
    );
    std::fs::write(source.join("CMakeLists.txt"), lists).expect("a file");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.path().display()));
    output(&mut configure);
    output(Command::new("cmake").arg("--build").arg(&build));
    let text = output(Command::new(build.join("pool")).arg("sim:1GiB"));
    assert!(text.starts_with("the last byte is 7\n"), "{text}");
}
