//! The code lines and settings that help, in the form that the program's allocator expects.

use crate::recording::{Recording, Source};

/// The allocator that a recorded program used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Allocator {
    PyTorch,
    /// The allocator of TensorFlow and XLA.
    Bfc,
    /// A stack of millpond, also under PyTorch.
    Millpond,
    RmmPool,
    Unknown,
}

impl Allocator {
    fn of(recording: &Recording) -> Self {
        match recording.source().format.as_str() {
            Source::PYTORCH if recording.settings().iter().any(|(name, _)| name == "millpond") => {
                Self::Millpond
            }
            Source::PYTORCH | Source::PYTORCH_MESSAGE | Source::PYTORCH_TRACE => Self::PyTorch,
            Source::BFC => Self::Bfc,
            Source::RMM_DEBUG => Self::RmmPool,
            _ => Self::Unknown,
        }
    }
}

/// Returns the lines that reduce fragmentation.
pub(super) fn less_fragmentation(recording: &Recording) -> Vec<String> {
    let is_on =
        recording.settings().iter().any(|(name, value)| name == "expandable_segments" && value == "True");
    let allocator = Allocator::of(recording);
    let order = "allocate long-lived blocks before short-lived ones";
    let check = "run `millpond-replay tune FILE` to check that this helps, because some programs need more \
                 memory with it; ";
    match allocator {
        Allocator::Millpond if is_on => vec![order.to_owned()],
        Allocator::Millpond => {
            vec!["let the pool map physical pages: build it directly on `cuda`, without pages=off".to_owned()]
        }
        Allocator::Bfc => {
            vec!["TF_GPU_ALLOCATOR=cuda_malloc_async, which TensorFlow and JAX read".to_owned()]
        }
        _ if is_on => vec![format!("expandable_segments is on: {order}")],
        _ => vec![
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned(),
            format!(
                "{}expandable segments do not work with vLLM's sleep mode, or if a library replaces \
                 PyTorch's allocator",
                if recording.has_sums_only() { "" } else { check }
            ),
        ],
    }
}

/// Returns the line that raises the limit of the allocator.
pub(super) fn raise_limit(recording: &Recording) -> String {
    match Allocator::of(recording) {
        Allocator::PyTorch => "raise torch.cuda.set_per_process_memory_fraction, or omit it",
        Allocator::Bfc => {
            "raise the limit: XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 in JAX, \
             per_process_gpu_memory_fraction in TensorFlow"
        }
        Allocator::Millpond => "raise `max` of the pool in the stack, or the limit of the layer `limiting`",
        Allocator::RmmPool => "raise the pool's maximum_pool_size, or omit it",
        Allocator::Unknown => "raise the limit of the allocator, or omit it",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(format: &str, settings: &[(&str, &str)]) -> Recording {
        let mut recording = Recording::new("file", format);
        settings.iter().for_each(|(name, value)| recording.setting(name, value));
        recording
    }

    #[test]
    fn a_line_names_only_the_program_s_own_allocator() {
        let stacks = ("millpond", "cuda+pool:pages=off");
        for (format, settings, lines, limit) in [
            (Source::PYTORCH, &[][..], "PYTORCH_CUDA_ALLOC_CONF", "per_process"),
            (Source::PYTORCH, &[("expandable_segments", "True")], "expandable_segments is on", "per_process"),
            (Source::PYTORCH, &[stacks], "pages=off", "`max`"),
            (Source::PYTORCH, &[stacks, ("expandable_segments", "True")], "long-lived", "`max`"),
            (Source::BFC, &[], "TF_GPU_ALLOCATOR", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ] {
            let recording = recording(format, settings);
            let (fixes, raise) = (less_fragmentation(&recording).join("; "), raise_limit(&recording));
            assert!(
                fixes.contains(lines) && raise.contains(limit),
                "{format} {settings:?}: {fixes}; {raise}"
            );
            let is_of_pytorch = format == Source::PYTORCH && !settings.contains(&stacks);
            let all = format!("{fixes}; {raise}");
            assert!(is_of_pytorch || !all.contains("PYTORCH") && !all.contains("torch."), "{all}");
        }
    }
}
