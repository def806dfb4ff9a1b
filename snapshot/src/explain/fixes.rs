//! The code lines and settings that help, in the form that the program's allocator and its version expect.

use millpond_engine::text::file_word;

use super::settings;
use crate::recording::{Recording, Source};

/// The allocator that a recorded program used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Allocator {
    /// PyTorch's caching allocator, for CUDA and for ROCm.
    PyTorch,
    /// PyTorch's allocator that passes all requests on to the driver.
    Async,
    /// PyTorch's allocator for the GPUs of Macs.
    Mps,
    /// The allocator of TensorFlow and XLA.
    Bfc,
    /// A stack of millpond, also under PyTorch.
    Millpond,
    RmmPool,
    /// No allocator: the program called the driver, below `millpond-replay run`.
    Driver,
    Unknown,
}

impl Allocator {
    fn of(recording: &Recording) -> Self {
        match recording.source().format.as_str() {
            Source::MILLPOND | Source::MILLPOND_LOG => Self::Millpond,
            Source::PYTORCH_MESSAGE => match kind(recording) {
                Recording::ASYNC => Self::Async,
                "MPS" => Self::Mps,
                "XPU" | "NPU" => Self::Unknown,
                _ => Self::PyTorch,
            },
            Source::PYTORCH | Source::PYTORCH_TRACE
                if settings::text(recording).contains("cudaMallocAsync") =>
            {
                Self::Async
            }
            Source::PYTORCH | Source::PYTORCH_TRACE => Self::PyTorch,
            Source::BFC => Self::Bfc,
            Source::RMM_DEBUG | Source::RMM_MESSAGE => Self::RmmPool,
            Source::DRIVER_CALLS => Self::Driver,
            _ => Self::Unknown,
        }
    }
}

/// Returns the kind of device in a message of PyTorch, such as `CUDA`.
fn kind(recording: &Recording) -> &str {
    recording.detail_of(Recording::ALLOCATOR).and_then(|text| text.split(' ').next()).unwrap_or("")
}

/// Returns the environment variable that PyTorch reads. PyTorch 2.9 also has `PYTORCH_ALLOC_CONF`, but
/// ignores some settings there. All later versions read both.
fn variable(recording: &Recording) -> &'static str {
    if kind(recording) == "HIP" { "PYTORCH_HIP_ALLOC_CONF" } else { settings::variable(recording) }
}

/// Returns the lines that reduce fragmentation.
pub(super) fn less_fragmentation(recording: &Recording) -> Vec<String> {
    let is_on =
        recording.settings().iter().any(|(name, value)| name == "expandable_segments" && value == "True");
    let order = "allocate long-lived blocks before short-lived ones";
    match Allocator::of(recording) {
        Allocator::PyTorch if is_on => vec![format!("expandable_segments is on: {order}")],
        Allocator::PyTorch => expandable_segments(recording),
        Allocator::Millpond if !is_on => {
            vec![
                "let the pool map physical pages: build the pool directly on `cuda`, without pages=off"
                    .to_owned(),
            ]
        }
        Allocator::Bfc => {
            vec!["TF_GPU_ALLOCATOR=cuda_malloc_async, which TensorFlow and JAX read".to_owned()]
        }
        _ => vec![order.to_owned()],
    }
}

/// Returns the lines that make PyTorch's segments grow, if PyTorch's version can do so. If not, returns the
/// lines that this version has.
fn expandable_segments(recording: &Recording) -> Vec<String> {
    let (variable, version) = (variable(recording), recording.detail_of(Recording::VERSION));
    let update = "update PyTorch: version 2.1 or later has expandable_segments".to_owned();
    match version {
        Some(Recording::UP_TO_1_3) => return vec![update],
        Some(Recording::UP_TO_2_0) => {
            return vec![
                format!("{variable}=max_split_size_mb:128"),
                "max_split_size_mb needs PyTorch 1.10 or later".to_owned(),
                update,
            ];
        }
        _ => {}
    }
    let is_known =
        version.is_some() || recording.settings().iter().any(|(name, _)| name == "expandable_segments");
    let needs = if is_known { "" } else { "expandable_segments needs PyTorch 2.1 or later; " };
    let check = match recording.has_sums_only() {
        true => String::new(),
        false => format!(
            "run `millpond-replay tune {}` to check that this helps, because some programs need more memory \
             with it; ",
            file_word(recording.file())
        ),
    };
    vec![
        format!("{variable}=expandable_segments:True"),
        format!(
            "{needs}{check}expandable segments do not work with vLLM's sleep mode, or if a library replaces \
             PyTorch's allocator"
        ),
    ]
}

/// Returns the lines that reduce rounding.
pub(super) fn less_rounding(recording: &Recording) -> Vec<String> {
    let names = settings::named(recording, |name| name.contains("split") || name.contains("roundup"));
    if !names.is_empty() {
        return vec![format!("omit {} from {}", names.join(" and "), variable(recording))];
    }
    vec![
        match Allocator::of(recording) {
            Allocator::PyTorch if recording.settings().is_empty() => {
                "combine many small tensors into one tensor; or unset roundup_power2_divisions, if it is set"
            }
            Allocator::PyTorch => "combine many small tensors into one tensor",
            _ => "combine many small blocks into one block",
        }
        .to_owned(),
    ]
}

/// Returns the line that raises the limit of the allocator.
pub(super) fn raise_limit(recording: &Recording) -> String {
    match Allocator::of(recording) {
        Allocator::PyTorch | Allocator::Async => {
            "raise torch.cuda.set_per_process_memory_fraction, or omit it"
        }
        Allocator::Mps => "raise PYTORCH_MPS_HIGH_WATERMARK_RATIO, or omit it",
        Allocator::Bfc => {
            "raise the limit: XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 in JAX, \
             per_process_gpu_memory_fraction in TensorFlow"
        }
        Allocator::Millpond => "raise `max` of the pool in the stack, or the limit of the layer `limiting`",
        Allocator::RmmPool => "raise the pool's maximum_pool_size, or omit it",
        Allocator::Driver => "raise `--budget` of `millpond-replay run`, or omit it",
        Allocator::Unknown => "raise the limit of the allocator, or omit it",
    }
    .to_owned()
}

/// Returns the lines that let a request use the free memory of other streams. Before PyTorch fails, it has
/// returned all segments that are wholly free, so `empty_cache` would not help.
pub(super) fn share_streams(recording: &Recording) -> Vec<String> {
    let mut fixes = less_fragmentation(recording);
    match Allocator::of(recording) {
        Allocator::PyTorch => {}
        Allocator::Millpond => {
            fixes.push("call `trim` of the stack when a stream is no longer used".to_owned());
        }
        _ => fixes.push("release the free memory of streams that are no longer used".to_owned()),
    }
    fixes
}

/// Returns the lines that let a request use the free memory of private pools. `at` is the code line that
/// captures graphs, if it is known.
pub(super) fn share_pools(recording: &Recording, at: Option<&str>) -> Vec<String> {
    let at = at.map_or(String::new(), |line| format!("at {line}: "));
    let (how, drop) = match Allocator::of(recording) {
        Allocator::PyTorch => (
            ": torch.cuda.graph(graph, pool=first.pool())",
            " (`del graph`): a live graph keeps its pool, and empty_cache() does not help while it lives",
        ),
        Allocator::Millpond => (
            "; under PyTorch: torch.cuda.graph(graph, pool=first.pool())",
            ": a live graph keeps its pool, and `trim` does not help while it lives",
        ),
        _ => ("", ": a live graph keeps its pool"),
    };
    vec![
        format!("{at}share one pool among the graphs{how}"),
        "graphs that share a pool must not run at the same time, and no graph's result may be needed after \
         another graph replays: copy results that you keep"
            .to_owned(),
        format!("delete graphs that are no longer replayed{drop}"),
    ]
}

/// Returns the lines that free memory earlier that waits for other streams.
pub(super) fn free_earlier(recording: &Recording) -> Vec<String> {
    let fixes: &[&str] = match Allocator::of(recording) {
        Allocator::PyTorch => &[
            "instead of record_stream, let the block's own stream wait for the other stream before the free: \
             torch.cuda.current_stream().wait_stream(side)",
            "with NCCL: TORCH_NCCL_AVOID_RECORD_STREAMS=1; new versions of PyTorch do this by default",
        ],
        _ => &["let the block's own stream wait for the other stream before the free"],
    };
    fixes.iter().map(|&fix| fix.to_owned()).collect()
}

/// Returns the advice about blocks that a program may keep by accident.
pub(super) fn keep_less(recording: &Recording) -> &'static str {
    match Allocator::of(recording) {
        Allocator::PyTorch | Allocator::Async | Allocator::Mps => {
            "a list of losses keeps their graphs (use `loss.item()`, or `torch.no_grad()`), a saved \
             exception keeps its frames, and objects in cycles wait for `gc.collect()`"
        }
        _ => "a list, a cache, or a saved exception may keep them",
    }
}

/// Returns the advice to look at the other users of the device.
pub(super) fn other_users(recording: &Recording) -> &'static str {
    match kind(recording) {
        "HIP" => "look with `rocm-smi` for other processes on this GPU, and end them",
        "MPS" | "XPU" | "NPU" => "look for other processes on this GPU, and end them",
        _ => "look with `nvidia-smi` for other processes on this GPU, and end them",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(format: &str, settings: &[(&str, &str)]) -> Recording {
        let mut recording = Recording::new("file", format);
        settings.iter().for_each(|(name, value)| recording.setting(name, value));
        recording
    }

    /// Returns all advice.
    fn all(recording: &Recording) -> String {
        let mut all =
            [less_fragmentation(recording), less_rounding(recording), free_earlier(recording)].concat();
        all.extend([share_pools(recording, None), share_streams(recording)].concat());
        all.extend([raise_limit(recording), keep_less(recording).to_owned()]);
        all.join("; ")
    }

    #[test]
    fn a_line_names_only_the_program_s_own_allocator() {
        let stacks = ("millpond", "cuda+pool:pages=off");
        for (format, settings, lines, limit) in [
            (Source::PYTORCH, &[][..], "PYTORCH_CUDA_ALLOC_CONF", "per_process"),
            (Source::PYTORCH, &[("expandable_segments", "True")], "expandable_segments is on", "per_process"),
            (Source::MILLPOND, &[stacks], "pages=off", "`max`"),
            (Source::MILLPOND, &[stacks, ("expandable_segments", "True")], "long-lived", "`max`"),
            (Source::BFC, &[], "TF_GPU_ALLOCATOR", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
            (Source::RMM_DEBUG, &[], "long-lived", "maximum_pool_size"),
            (Source::MILLPOND_LOG, &[], "pages=off", "`max`"),
            (Source::RMM, &[], "long-lived", "the limit of the allocator"),
            (Source::DRIVER_CALLS, &[], "long-lived", "--budget"),
        ] {
            let recording = recording(format, settings);
            let (fixes, raise) = (less_fragmentation(&recording).join("; "), raise_limit(&recording));
            assert!(
                fixes.contains(lines) && raise.contains(limit),
                "{format} {settings:?}: {fixes}; {raise}"
            );
            let all = all(&recording).replace("under PyTorch: torch.cuda.graph", "");
            let is_of_pytorch = format == Source::PYTORCH;
            assert!(is_of_pytorch || !all.contains("PYTORCH") && !all.contains("torch."), "{all}");
        }
    }

    #[test]
    fn a_setting_is_named_only_for_versions_that_have_it() {
        let of = |kind: &str, version: Option<&str>| {
            let mut recording = recording(Source::PYTORCH_MESSAGE, &[]);
            recording.detail(Recording::ALLOCATOR, format!("{kind} of PyTorch"));
            version.into_iter().for_each(|version| recording.detail(Recording::VERSION, version));
            less_fragmentation(&recording)
        };
        let on = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        assert_eq!(of("CUDA", Some(Recording::SINCE_2_1))[0], on);
        assert!(!of("CUDA", Some(Recording::SINCE_2_1))[1].contains("needs"));
        assert!(of("CUDA", None)[0] == on && of("CUDA", None)[1].contains("needs PyTorch 2.1 or later"));
        assert_eq!(of("HIP", None)[0], "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True");
        let old = of("CUDA", Some(Recording::UP_TO_2_0));
        assert_eq!(old[0], "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128");
        let oldest = of("CUDA", Some(Recording::UP_TO_1_3));
        for fixes in [old, oldest] {
            assert_eq!(fixes.last().unwrap(), "update PyTorch: version 2.1 or later has expandable_segments");
            assert!(!fixes.iter().any(|fix| fix.contains("expandable_segments:True")), "{fixes:?}");
        }
        for kind in [Recording::ASYNC, "MPS", "XPU", "NPU"] {
            let fixes = of(kind, None).join("; ");
            assert!(!fixes.contains("expandable") && !fixes.contains("CUDA"), "{kind}: {fixes}");
        }
        // A snapshot with the setting is from a version that has it.
        let known = recording(Source::PYTORCH, &[("expandable_segments", "False")]);
        assert!(!less_fragmentation(&known).join("; ").contains("needs"));
    }
}
