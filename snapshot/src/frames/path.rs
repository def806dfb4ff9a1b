//! Where Python files lie: in a package, in the standard library, or elsewhere.

use std::borrow::Cow;

/// The folders that package managers install into.
const INSTALLED: [&str; 2] = ["site-packages/", "dist-packages/"];

/// Frameworks whose files a snapshot may name without the path before the package's folder, as in
/// `torch/optim/adam.py`.
const FRAMEWORKS: [&str; 14] = [
    "torch/",
    "torchvision/",
    "torchaudio/",
    "torchrec/",
    "fbgemm_gpu/",
    "triton/",
    "transformers/",
    "accelerate/",
    "diffusers/",
    "peft/",
    "deepspeed/",
    "lightning/",
    "lightning_fabric/",
    "pytorch_lightning/",
];

/// Files of PyTorch outside of any package: the folder above the file, and a place that no other project has.
const TORCH_SOURCES: [(&str, &str); 14] = [
    ("/", "torch/_compile.py"),
    ("/", "torch/_ops.py"),
    ("/", "torch/_tensor.py"),
    ("/", "torch/_dynamo/"),
    ("/", "torch/_functorch/"),
    ("/", "torch/_higher_order_ops/"),
    ("/", "torch/_inductor/"),
    ("/", "torch/autograd/function.py"),
    ("/", "torch/autograd/graph.py"),
    ("/", "torch/nn/functional.py"),
    ("/", "torch/nn/modules/"),
    ("/", "torch/optim/optimizer.py"),
    ("/pytorch/", "torch/"),
    // TorchScript names its copies of source files `code/__torch__/torch/nn/…`.
    ("/__torch__/", "torch/"),
];

/// Modules of the standard library that call other code. On Windows, the path does not show the library's
/// version.
const CALLERS: [&str; 12] = [
    "asyncio/",
    "bdb.py",
    "concurrent/",
    "contextlib.py",
    "functools.py",
    "importlib/",
    "multiprocessing/",
    "queue.py",
    "runpy.py",
    "selectors.py",
    "socketserver.py",
    "threading.py",
];

/// Where a Python file lies. The texts are the rest of the path, with `/` between folders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place<'a> {
    /// In an installed package. The text begins with the package's folder.
    Package(Cow<'a, str>),
    /// In Python's standard library.
    Standard(Cow<'a, str>),
    /// A script that a package manager wrote into a `bin` folder.
    Script,
    /// Code that a compiler of PyTorch wrote.
    Generated(Cow<'a, str>),
    /// Elsewhere. The text is the whole path.
    Elsewhere(Cow<'a, str>),
}

/// Returns a path with `/` between folders.
fn with_slashes(path: &str) -> Cow<'_, str> {
    if path.contains('\\') { path.replace('\\', "/").into() } else { path.into() }
}

/// Returns the part of a path that begins at a byte.
fn rest(path: Cow<'_, str>, from: usize) -> Cow<'_, str> {
    match path {
        Cow::Borrowed(path) => Cow::Borrowed(&path[from..]),
        Cow::Owned(mut path) => {
            path.drain(..from);
            Cow::Owned(path)
        }
    }
}

/// Returns where a Python file lies.
pub(super) fn place(path: &str) -> Place<'_> {
    let path = with_slashes(path);
    let installed =
        INSTALLED.iter().filter_map(|folder| path.rfind(folder).map(|at| at + folder.len())).max();
    if let Some(from) = installed {
        return Place::Package(rest(path, from));
    }
    if is_generated(&path) {
        return Place::Generated(path);
    }
    if let Some(module) = module_in_name(&path) {
        return Place::Package(Cow::Owned(module));
    }
    if let Some(from) = standard(&path) {
        return Place::Standard(rest(path, from));
    }
    if FRAMEWORKS.iter().any(|folder| path.starts_with(folder)) {
        return Place::Package(path);
    }
    let source = TORCH_SOURCES.iter().find_map(|(above, file)| {
        path.match_indices(file).map(|(at, _)| at).find(|&at| path[..at].ends_with(above))
    });
    if let Some(from) = source {
        return Place::Package(rest(path, from));
    }
    if is_script(&path) { Place::Script } else { Place::Elsewhere(path) }
}

/// Returns the index at which the path continues in Python's standard library.
fn standard(path: &str) -> Option<usize> {
    let is_caller = |rest: &str| CALLERS.iter().any(|caller| rest.starts_with(caller));
    let mut from = 0;
    for folder in path.split_inclusive('/') {
        let after = from + folder.len();
        let below = &path[..from];
        let is_library =
            folder.starts_with("python3") && (below.ends_with("lib/") || below.ends_with("lib64/"));
        if is_library || (folder.eq_ignore_ascii_case("lib/") && is_caller(&path[after..])) {
            return Some(after);
        }
        from = after;
    }
    (is_caller(path) && !path.contains('/')).then_some(0)
}

/// Returns whether a compiler wrote the file. Inductor names a file by the hash of its content, and its
/// folder by two letters of the hash.
fn is_generated(path: &str) -> bool {
    if path.contains("torchinductor_") {
        return true;
    }
    let Some((folders, file)) = path.rsplit_once('/') else { return false };
    let name = file.strip_suffix(".py").unwrap_or("");
    let is_hash = name.len() > 40 && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'));
    is_hash && name.get(1..3) == folders.rsplit('/').next()
}

/// If a file is named like a module, returns its place in the package. For example, torch-geometric writes
/// code into temporary files such as `torch_geometric.nn.conv.gat_conv_GATConv_propagate_l09cls4w.py`.
fn module_in_name(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?.strip_suffix(".py")?;
    let is_identifier = |part: &str| {
        part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !part.starts_with(|first: char| first.is_ascii_digit())
            && !part.is_empty()
    };
    let is_module = name.matches('.').count() >= 2 && name.split('.').all(is_identifier);
    is_module.then(|| format!("{}.py", name.replace('.', "/")))
}

/// Returns whether the file is a script in a `bin` folder of Python, of a virtual environment or of the
/// system.
fn is_script(path: &str) -> bool {
    let Some((folder, file)) = path.rsplit_once('/') else { return false };
    let folder = folder.to_ascii_lowercase();
    let Some(above) = folder.strip_suffix("/bin").or_else(|| folder.strip_suffix("/scripts")) else {
        return false;
    };
    let name = above.rsplit('/').next().unwrap_or("");
    let is_home = ["usr", "local", ".local"].contains(&name);
    let is_environment = ["env", "conda", "forge"].iter().any(|part| name.contains(part));
    let is_named = above.rsplit('/').nth(1).is_some_and(|folder| folder == "envs");
    !file.contains(".py") && (is_home || is_environment || is_named)
}

/// Returns the folder that contains all these files, with `/` at its end. Returns an empty text if there is
/// none.
pub(crate) fn common_folder<'a>(files: impl Iterator<Item = &'a str>) -> String {
    let mut common: Option<String> = None;
    for file in files {
        let file = with_slashes(file);
        let Some(end) = file.rfind('/') else { return String::new() };
        let folder = &file[..=end];
        common = Some(match common {
            None => folder.to_owned(),
            Some(common) => {
                let same = common.split_inclusive('/').zip(folder.split_inclusive('/'));
                same.take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
            }
        });
    }
    // The path `/` alone would be the folder of every file, so it is not used.
    common.filter(|folder| folder.len() > 1 && !folder.ends_with(":/")).unwrap_or_default()
}

/// Returns a path for people. It begins with the package's folder, or with the path inside `folder`.
pub(super) fn short<'a>(path: &'a str, folder: &str) -> Cow<'a, str> {
    match place(path) {
        Place::Package(rest) | Place::Standard(rest) => rest,
        Place::Generated(path) => {
            let from = path.rfind('/').map_or(0, |at| at + 1);
            rest(path, from)
        }
        Place::Elsewhere(path) if !folder.is_empty() && path.starts_with(folder) => rest(path, folder.len()),
        Place::Script | Place::Elsewhere(_) => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_places() {
        let package = |rest: &'static str| Place::Package(rest.into());
        let standard = |rest: &'static str| Place::Standard(rest.into());
        for (path, expected) in [
            ("/usr/lib/python3/dist-packages/torch/_ops.py", package("torch/_ops.py")),
            ("/opt/conda/lib/python3.12/site-packages/peft/peft_model.py", package("peft/peft_model.py")),
            (
                "C:\\venv\\lib\\site-packages\\torch\\nn\\modules\\module.py",
                package("torch/nn/modules/module.py"),
            ),
            ("torch/optim/adam.py", package("torch/optim/adam.py")),
            ("/src/pytorch/torch/_dynamo/eval_frame.py", package("torch/_dynamo/eval_frame.py")),
            ("/src/checkout/torch/nn/modules/linear.py", package("torch/nn/modules/linear.py")),
            ("code/__torch__/torch/nn/modules/linear.py", package("torch/nn/modules/linear.py")),
            ("/usr/lib/python3.10/contextlib.py", standard("contextlib.py")),
            ("D:\\anaconda\\lib\\asyncio\\events.py", standard("asyncio/events.py")),
            ("threading.py", standard("threading.py")),
            ("/opt/conda/bin/torchrun", Place::Script),
            ("/opt/conda/envs/llama/bin/accelerate", Place::Script),
            ("/data/me/.venv/bin/lightning", Place::Script),
        ] {
            assert_eq!(place(path), expected, "{path}");
        }
        for path in [
            "/data/me/project/train.py",
            "/data/me/project/torch/model.py",
            "/data/me/project/lib/model.py",
            "/data/me/project/bin/train",
            "queues/threading.py",
            "<string>",
            "train.py",
        ] {
            assert_eq!(place(path), Place::Elsewhere(path.into()), "{path}");
        }
        let hash = "cludit2ypsasomtvbubno3ruw44fsipvuctzhyb3ahz256v2ucwf";
        for path in [format!("/cache/lu/{hash}.py"), format!("/x/torchinductor_me/lu/{hash}.py")] {
            assert_eq!(place(&path), Place::Generated(path.as_str().into()));
        }
        assert_eq!(
            place(&format!("/cache/xx/{hash}.py")),
            Place::Elsewhere(format!("/cache/xx/{hash}.py").into())
        );
    }

    #[test]
    fn paths_for_people_begin_at_the_package_or_the_project() {
        let files = ["/data/me/gpt/train.py", "/data/me/gpt/models/block.py"];
        let folder = common_folder(files.into_iter());
        assert_eq!(folder, "/data/me/gpt/");
        assert_eq!(short(files[1], &folder), "models/block.py");
        assert_eq!(short("/usr/lib/python3.10/site-packages/torch/_ops.py", &folder), "torch/_ops.py");
        assert_eq!(short("/data/you/x.py", &folder), "/data/you/x.py");
        assert_eq!(common_folder(["/a/x.py", "/b/y.py"].into_iter()), "");
        assert_eq!(common_folder(["C:\\a\\x.py", "C:\\b\\y.py"].into_iter()), "");
        assert_eq!(common_folder(["C:\\a\\x.py", "C:\\a\\b\\y.py"].into_iter()), "C:/a/");
        assert_eq!(common_folder(["train.py"].into_iter()), "");
        assert_eq!(common_folder(std::iter::empty()), "");
    }
}
