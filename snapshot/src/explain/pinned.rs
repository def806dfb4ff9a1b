//! Explains why page-locked memory of the host could not be allocated.

use super::explanation::Diagnosis;

/// The code of the diagnosis.
pub(super) const CODE: &str = "pinned_memory";

/// Returns the diagnosis. It has no evidence, because the text has no figures.
pub(super) fn diagnosis() -> Diagnosis {
    let fixes = [
        "pin less at a time: pin one batch and use its buffer again, or omit pin_memory=True",
        "in a DataLoader: pin_memory=False, fewer num_workers, or a smaller prefetch_factor, because each \
         waiting batch is pinned",
        "give the program more memory of the host: `free -g` shows how much is free, a container has a limit \
         of its own, and `ulimit -l` may limit page-locked memory",
    ];
    Diagnosis {
        code: CODE,
        what: "page-locked (pinned) memory of the host could not be allocated: it is not memory of the GPU"
            .to_owned(),
        evidence: Vec::new(),
        holders: Vec::new(),
        fixes: fixes.map(str::to_owned).to_vec(),
    }
}
