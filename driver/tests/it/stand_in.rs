//! Compiles the stand-in for libcuda and runs a test in a process that loads it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const IN_CHILD: &str = "MILLPOND_TEST_WITH_FAKE_CUDA";

/// Compiles the stand-in as `libcuda.so.1` and returns its folder. The kind `empty` has no functions, `whole`
/// is CUDA 11.4, and `pools` is CUDA 13.2. The kind `echo` is another library, which notes its calls.
fn library(kind: &str) -> PathBuf {
    static FOLDERS: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let compile = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake_libcuda_{kind}"));
        std::fs::create_dir_all(&folder).unwrap();
        // Written under another name first, so that a concurrent test process never loads half a library.
        let unfinished = folder.join(format!("{}.so", std::process::id()));
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
        rustc.args(["--crate-type=cdylib", "--crate-name=fake", "--edition=2024", "-o"]).arg(&unfinished);
        let source = if kind == "echo" { "echo.rs" } else { "fake.rs" };
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_libcuda");
        rustc.arg(sources.join(source)).args(["--cfg", kind]);
        let output = rustc.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&unfinished, folder.join("libcuda.so.1")).unwrap();
        folder
    };
    let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    folders.entry(kind.to_owned()).or_insert_with(compile).clone()
}

/// Runs `body`, the test with this name in a module, in a process whose driver is the stand-in.
pub(crate) fn run(module: &str, test: &str, kind: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(IN_CHILD).is_some() {
        return body();
    }
    let (_, module) = module.split_once("::").expect("a module has a crate");
    let mut path = library(kind).into_os_string();
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(rest);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(IN_CHILD, "1")
        .env("LD_LIBRARY_PATH", path)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}", output.status);
}
