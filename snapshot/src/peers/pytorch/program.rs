//! Finds an installed PyTorch, and compiles the program around its allocator.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};

use millpond_core::environment::variable;
use millpond_core::{Error, Result};
use parking_lot::Mutex;
use tempfile::TempDir;

/// CUDA's libraries, which the allocator finds as the simulated device.
const CUDA: [&str; 4] = ["libcudart.so.12", "libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1"];

/// The library with CUDA's functions over a simulated device.
const SHIM: &str = "libmillpond_shim.so";

/// Prints the folder of PyTorch, without importing it.
const FIND: &str = "import importlib.util as u; s = u.find_spec('torch'); \
                    print(s.submodule_search_locations[0] if s else '')";

/// The programs that are in use, by PyTorch's folder.
static COMPILED: Mutex<Vec<(PathBuf, Weak<TempDir>)>> = Mutex::new(Vec::new());

/// A compiled program, in a folder that is removed with the last copy of this value.
#[derive(Clone, Debug)]
pub(super) struct Program(Arc<TempDir>);

impl Program {
    /// Compiles the program for the PyTorch in a folder, or for the one that `python3` imports.
    ///
    /// # Errors
    /// A sentence that names the missing part, and how to get it.
    pub(super) fn compile(folder: Option<&Path>) -> Result<Self> {
        let torch = match folder {
            Some(folder) => in_folder(folder)?,
            None => of_python()?,
        };
        let known = |(of, made): &(PathBuf, Weak<TempDir>)| made.upgrade().filter(|_| *of == torch);
        if let Some(made) = COMPILED.lock().iter().find_map(known) {
            return Ok(Self(made));
        }
        let made = tempfile::tempdir().map_err(|error| problem(&"a temporary folder", &error))?;
        let program = Self(Arc::new(made));
        program.build(&torch, &shim()?)?;
        let mut compiled = COMPILED.lock();
        compiled.retain(|(_, made)| made.strong_count() > 0);
        compiled.push((torch, Arc::downgrade(&program.0)));
        Ok(program)
    }

    pub(super) fn command(&self) -> Command {
        Command::new(self.0.path().join("server"))
    }

    fn build(&self, torch: &Path, shim: &Path) -> Result<()> {
        let folder = self.0.path();
        let failed = |error| problem(&folder.display(), &error);
        for name in CUDA {
            symlink(shim, folder.join(name)).map_err(failed)?;
        }
        let fallback = folder.join("include");
        fs::create_dir_all(fallback.join("crt")).map_err(failed)?;
        for (name, text) in [
            ("server.cpp", include_str!("server.cpp")),
            ("include/crt/host_defines.h", include_str!("host_defines.h")),
            ("include/crt/host_config.h", ""),
        ] {
            fs::write(folder.join(name), text).map_err(failed)?;
        }
        let libraries = torch.join("lib");
        let mut command = Command::new(variable("CXX").unwrap_or_else(|| "c++".into()));
        command.args(["-std=c++20", "-O1", "-w"]).arg(folder.join("server.cpp"));
        command.arg("-o").arg(folder.join("server")).arg("-I").arg(torch.join("include"));
        command.arg("-I").arg(cuda_headers(torch)?).arg("-isystem").arg(fallback);
        // The program names CUDA's libraries first. PyTorch's libraries look in their own folders for
        // libraries that are not loaded yet, and would find CUDA there.
        command.arg("-L").arg(folder).arg("-L").arg(&libraries).arg("-Wl,--no-as-needed");
        command.args(CUDA.map(|name| format!("-l:{name}"))).args(["-lc10_cuda", "-lc10"]);
        command.args(["-Wl,--allow-shlib-undefined", "-Wl,--disable-new-dtags"]);
        for place in [folder, &libraries] {
            command.args(["-Xlinker", "-rpath", "-Xlinker"]).arg(place);
        }
        let output = command.stdin(Stdio::null()).output().map_err(|error| {
            Error::invalid_argument(format!(
                "{}: {error}; PyTorch's allocator is reached through a small C++ program: install a C++20 \
                 compiler, for example with `apt-get install g++`, or name one in CXX",
                command.get_program().display()
            ))
        })?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let tells = |line: &&str| line.contains("error") || line.contains("undefined");
        let lines: Vec<&str> = text.lines().filter(tells).take(3).collect();
        Err(Error::invalid_argument(format!(
            "the program around the allocator of {} does not compile: {}; use a C++20 compiler (CXX names \
             it), and PyTorch 2.15, with which this is tested",
            torch.display(),
            if lines.is_empty() { text.trim().to_owned() } else { lines.join("; ") }
        )))
    }
}

fn problem(what: &dyn std::fmt::Display, error: &std::io::Error) -> Error {
    Error::invalid_argument(format!("{what}: {error}"))
}

/// Returns the folder of the package `torch`, which `python3` finds.
fn of_python() -> Result<PathBuf> {
    let advice =
        "install PyTorch with CUDA (`pip install torch`), activate its environment, or name its folder";
    // Python looks for modules in its working folder first, and the folder of a downloaded log may have some.
    let output = Command::new("python3").args(["-c", FIND]).current_dir("/").stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::invalid_argument(format!("python3: {error}; {advice}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim() {
        "" => Err(Error::invalid_argument(format!("`python3` has no package `torch`; {advice}"))),
        folder => in_folder(Path::new(folder)),
    }
}

/// Returns the folder of the package `torch`: the folder itself, or one in its `site-packages`.
fn in_folder(folder: &Path) -> Result<PathBuf> {
    let mut places = vec![folder.to_owned(), folder.join("torch")];
    let versions = fs::read_dir(folder.join("lib")).into_iter().flatten().flatten();
    places.extend(versions.map(|version| version.path().join("site-packages/torch")));
    let has = |place: &Path, file: &str| place.join(file).exists();
    let Some(torch) = places.iter().find(|place| has(place, "lib/libc10.so")) else {
        return Err(Error::invalid_argument(format!(
            "{}: there is no PyTorch; name its environment, its site-packages, or the folder `torch` there",
            folder.display()
        )));
    };
    if !has(torch, "lib/libc10_cuda.so") {
        return Err(Error::invalid_argument(format!(
            "{}: this PyTorch has no CUDA allocator (lib/libc10_cuda.so); install one that is built for CUDA",
            torch.display()
        )));
    }
    Ok(torch.clone())
}

/// Returns the folder of CUDA's headers: in the packages that PyTorch needs, in the environment, or of an
/// installed toolkit.
fn cuda_headers(torch: &Path) -> Result<PathBuf> {
    let packages = torch.parent().unwrap_or(torch).join("nvidia");
    let in_packages = fs::read_dir(packages).into_iter().flatten().flatten();
    let mut places: Vec<PathBuf> = in_packages.map(|package| package.path().join("include")).collect();
    places.sort();
    places.extend(torch.ancestors().map(|folder| folder.join("targets/x86_64-linux/include")));
    places.extend(variable("CUDA_HOME").map(|folder| PathBuf::from(folder).join("include")));
    places.push("/usr/local/cuda/include".into());
    places.into_iter().find(|place| place.join("cuda_runtime.h").exists()).ok_or_else(|| {
        Error::invalid_argument(
            "CUDA's headers are missing: install them with `pip install nvidia-cuda-runtime`, or name CUDA's \
             folder in CUDA_HOME",
        )
    })
}

/// Returns the library with the simulated device: the one that the environment names, or else the one that is
/// next to this program, or next to the program's folder.
fn shim() -> Result<PathBuf> {
    let named = variable("MILLPOND_SHIM_LIBRARY").map(PathBuf::from);
    let program = std::env::current_exe().ok();
    let folders = program.iter().flat_map(|file| file.ancestors().skip(1).take(2));
    let found = named.or_else(|| folders.map(|folder| folder.join(SHIM)).find(|file| file.exists()));
    found.filter(|file| file.exists()).and_then(|file| std::path::absolute(file).ok()).ok_or_else(|| {
        Error::invalid_argument(format!(
            "{SHIM} is not next to this program; build it with `cargo build --release -p millpond-shim`, or \
             name it in MILLPOND_SHIM_LIBRARY"
        ))
    })
}
