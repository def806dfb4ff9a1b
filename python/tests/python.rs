//! Runs the tests of the Python package, in a separate environment below `target/`.
//!
//! The test builds the package from the files that Cargo built for this run. MILLPOND_PYTHON names the Python
//! to use. Without Python 3.11 or later, the test is skipped with a message.
//!
//! MILLPOND_REQUIRE_PYTHON turns a missing Python into a failure. It also installs the frameworks whose tests
//! are otherwise skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) {
    let status = command.status();
    let status = status.unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    assert!(status.success(), "{command:?} failed");
}

/// Finds the Python to use.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("MILLPOND_PYTHON").map(PathBuf::from);
    let candidates = named.into_iter().chain(["python3", "python"].map(PathBuf::from));
    candidates.into_iter().find(|python| {
        let asked = Command::new(python)
            .args(["-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"])
            .output();
        asked.is_ok_and(|answer| answer.status.success())
    })
}

/// The packages that every test of the package needs.
const PACKAGES: &[&str] = &["pytest", "pytest-xdist", "numpy", "hypothesis", "prometheus-client"];

/// More packages, for the tests of the frameworks and the types: hundreds of MB. They are installed if
/// MILLPOND_REQUIRE_PYTHON is set; otherwise those tests are skipped.
const FRAMEWORKS: &[&str] = &[
    // Their classes can be made without a GPU.
    "dask[distributed]",
    "cuda-core",
    "numba-cuda",
    "nvidia-cuda-runtime<14",
    "rmm-cu13",
    // A test exports metrics with it.
    "opentelemetry-sdk",
    // The tests of types and style run these.
    "mypy",
    "ruff",
    // A test compiles the bridge to RMM with these.
    "cython",
    "nvidia-cuda-crt<14",
];

fn is_required() -> bool {
    std::env::var_os("MILLPOND_REQUIRE_PYTHON").is_some()
}

/// Makes the environment with pytest, once. A file in it lists the installed packages.
fn environment(target: &Path) -> Option<PathBuf> {
    let folder = target.join("python/env");
    let (python_of, note) = (folder.join("bin/python"), folder.join("packages"));
    let packages = [PACKAGES, if is_required() { FRAMEWORKS } else { &[] }].concat();
    let known = std::fs::read_to_string(&note).unwrap_or_default();
    let has_all = packages.iter().all(|package| known.lines().any(|line| line == *package));
    let runs = Command::new(&python_of).arg("--version").output();
    if !has_all || !runs.is_ok_and(|answer| answer.status.success()) {
        run(Command::new(python()?).args(["-m", "venv", "--clear"]).arg(&folder));
        run(Command::new(&python_of).args(["-m", "pip", "install", "--quiet"]).args(&packages));
        if is_required() {
            // Without PyTorch, whose wheel has hundreds of MB. The tests load only the file that they need.
            let accelerate = ["-m", "pip", "install", "--quiet", "--no-deps", "accelerate"];
            run(Command::new(&python_of).args(accelerate));
        }
        std::fs::write(note, packages.join("\n")).expect("the environment can be written");
    }
    Some(python_of)
}

/// Compiles the stand-in for libcuda that `test_devices.py` uses, and returns its folder.
fn fake_cuda(root: &Path, target: &Path) -> PathBuf {
    let folder = target.join("python/fake_cuda");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    run(Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--crate-type=cdylib", "--crate-name=fake", "--edition=2024", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(root.join("tests/fake_cuda/fake.rs")));
    folder
}

/// Copies the package's sources with its subpackages, but none of the files that a build added.
fn copy_sources(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the folder can be made");
    for file in std::fs::read_dir(from).expect("the package is there") {
        let path = file.expect("the package can be read").path();
        let target = to.join(path.file_name().expect("a file has a name"));
        if path.is_dir() && path.join("__init__.py").exists() {
            copy_sources(&path, &target);
        } else if ["py", "pyi", "pyx", "typed"]
            .iter()
            .any(|it| path.extension().is_some_and(|has| has == *it))
        {
            std::fs::copy(&path, target).expect("the file can be copied");
        }
    }
}

/// Returns the library that Cargo built for a crate, in the folder of this test. Cargo puts a package that
/// was not selected by name only into `deps/`.
fn built(deps: &Path, name: &str) -> PathBuf {
    let plain = deps.join(format!("lib{name}.so"));
    assert!(
        plain.exists(),
        "{} was not built: cargo build -p millpond-capi -p millpond-python",
        plain.display()
    );
    plain
}

#[test]
fn the_tests_of_the_package_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let this = std::env::current_exe().expect("the test has a path");
    let deps = this.parent().expect("the test is in a folder");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below `target`");
    let Some(python) = environment(target) else {
        assert!(!is_required(), "there is no Python 3.11 or later");
        // The test harness hides the output of a passing test.
        let _ = std::fs::write("/dev/stderr", "SKIPPED: no Python 3.11 or later to test the package with\n");
        return;
    };
    let site = target.join("python/site");
    let package = site.join("millpond");
    let _ = std::fs::remove_dir_all(&site);
    copy_sources(&root.join("millpond"), &package);
    // build.rs puts the same headers into a wheel.
    for header in
        ["millpond.h", "millpond/millpond.hpp", "millpond/memory_resource.hpp", "millpond/thrust.hpp"]
    {
        let copy = package.join("include").join(header);
        std::fs::create_dir_all(copy.parent().expect("a folder")).expect("the folder can be made");
        std::fs::copy(root.join("../capi/include").join(header), copy).expect("the header can be copied");
    }
    std::fs::copy(built(deps, "_native"), package.join("_native.abi3.so")).expect("it can be copied");
    let fake_cuda = if cfg!(target_os = "linux") { fake_cuda(root, target) } else { PathBuf::new() };
    run(Command::new(python)
        .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--durations=10"])
        // As many processes as cores.
        .args(["--numprocesses", "auto"])
        .arg(root.join("tests"))
        // `-m` puts the working folder first on the path, so this must not be the sources, which lack the
        // libraries.
        .current_dir(&site)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONPATH", &site)
        .env("MILLPOND_LIBRARY", built(deps, "millpond_c"))
        .env("MILLPOND_FAKE_CUDA", fake_cuda)
        // Keeps a bridge that was compiled for the same files.
        .env("MILLPOND_RMM_BRIDGE", target.join("python/bridge"))
        .env_remove("MILLPOND_STACK"));
}
