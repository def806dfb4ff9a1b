//! The candidates that `tune` tries. They depend on the file's format.

use millpond_engine::text::file_word;
use serde::Serialize;

use crate::peers::torch::settings::Settings;
use crate::recording::{EventKind, Recording, Source};

const MIB: u64 = 1 << 20;

/// The allocator to which a candidate's settings belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Family {
    /// PyTorch's native allocator.
    Torch,
    /// A memory resource of RMM.
    Rmm,
    /// A stack of millpond.
    Millpond,
}

/// One allocator with its settings.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// The text of the stack that models the allocator.
    pub stack: String,
    /// The allocator that the settings belong to.
    pub family: Family,
    /// Whether the file was recorded with these settings.
    pub is_recorded: bool,
    /// Whether it calls the driver for each request. It is the best one only if no other serves the file.
    #[serde(skip)]
    pub(super) is_plain: bool,
    /// For a pair of settings, the stacks of each setting alone.
    #[serde(skip)]
    pub(super) parts: Vec<String>,
    /// The code line that selects the candidate. `{bytes}` stands for the capacity in bytes, as a Python
    /// expression.
    #[serde(skip)]
    line: String,
    /// Known reasons why a program may be unable to use the candidate.
    pub constraints: Vec<String>,
}

impl Candidate {
    fn torch(settings: &Settings) -> Self {
        let stack = settings.stack();
        let conf = stack.strip_prefix("torch:").unwrap_or("").replace('=', ":").replace('"', "");
        let conf = conf.split(",limit:").next().unwrap_or("");
        let mut line = match conf {
            "" => "unset PYTORCH_CUDA_ALLOC_CONF".to_owned(),
            conf => format!("PYTORCH_CUDA_ALLOC_CONF={conf}"),
        };
        let mut constraints: Vec<&str> = Vec::new();
        if settings.is_expandable {
            constraints.extend([
                "does not work with vLLM's sleep mode, torch_memory_saver, or another library that replaces \
                 PyTorch's allocator or makes its own memory pools",
                "tensors that are shared with other processes (CUDA IPC) need a version of PyTorch that \
                 exports such segments",
            ]);
        }
        if settings.max_split != u64::MAX {
            constraints.push("each stall waits for all work on the GPU; compare the stalls");
        }
        if settings.garbage_collection > 0.0 {
            constraints.push("has an effect only with the limit in the second part of the line");
            let limit = "set_per_process_memory_fraction(({bytes}) / torch.cuda.mem_get_info()[1])";
            line = format!("{line}  # and torch.cuda.{limit}");
        }
        let constraints = constraints.into_iter().map(str::to_owned).collect();
        let family = Family::Torch;
        Self { stack, family, is_recorded: false, is_plain: false, parts: Vec::new(), line, constraints }
    }

    fn plain(stack: &str, family: Family, line: &str, constraint: Option<&str>) -> Self {
        let constraints = constraint.into_iter().map(str::to_owned).collect();
        let (stack, line, parts) = (stack.to_owned(), line.to_owned(), Vec::new());
        Self { stack, family, is_recorded: false, is_plain: false, parts, line, constraints }
    }

    /// Returns the setting or the line of code that selects the candidate, if `capacity` bytes are available.
    pub fn line(&self, capacity: u64) -> String {
        self.line.replace("{bytes}", &in_python(capacity))
    }

    /// Returns whether the candidate reserves a share of the device at once. Its peak then shows nothing.
    pub(super) fn takes_all(&self) -> bool {
        self.stack.contains('%')
    }
}

/// Returns a number of bytes as people write it in Python, as in `40 << 30`.
fn in_python(bytes: u64) -> String {
    let units = [30, 20].into_iter().find(|power| bytes > 0 && bytes.is_multiple_of(1 << power));
    units.map_or(bytes.to_string(), |power| format!("{} << {power}", bytes >> power))
}

/// Returns the candidates for a file, the most common first. Pairs of settings come last, because they are
/// skipped if the time is over.
pub(super) fn of(recording: &Recording) -> Result<Vec<Candidate>, String> {
    if recording.source().format == Source::BFC {
        return Err(format!(
            "has blocks of TensorFlow's and JAX's allocator, whose settings have no model here; try \
             TF_GPU_ALLOCATOR=cuda_malloc_async, and see `millpond-replay explain {}`",
            file_word(recording.file())
        ));
    }
    let is_torch = recording.source().format.starts_with("PyTorch");
    let mut all = if is_torch { torch(recording)? } else { rmm() };
    let pairs = all.iter().position(|candidate| !candidate.parts.is_empty()).unwrap_or(all.len());
    let pairs = all.split_off(pairs);
    let pool = match is_torch {
        true => "import millpond.torch; millpond.torch.use(\"cuda+pool\")  # before any torch.cuda call",
        false => "import millpond.rmm; millpond.rmm.use(\"cuda+pool\")",
    };
    let wait = "needs millpond's Python package";
    all.push(Candidate::plain("cuda+pool", Family::Millpond, pool, Some(wait)));
    let regions = match is_torch {
        true => {
            "import millpond.torch; millpond.torch.use(\"cuda+pool:pages=off\")  # before any torch.cuda call"
        }
        false => "import millpond.rmm; millpond.rmm.use(\"cuda+pool:pages=off\")",
    };
    all.push(Candidate::plain("cuda+pool:pages=off", Family::Millpond, regions, Some(wait)));
    if !is_torch {
        let bins = "import millpond.rmm; millpond.rmm.use(\"cuda+pool+binning\")";
        all.push(Candidate::plain("cuda+pool+binning", Family::Millpond, bins, Some(wait)));
    }
    all.extend(pairs);
    Ok(all)
}

/// Returns settings of PyTorch's allocator. The recorded settings come first, then single settings, then
/// pairs.
fn torch(recording: &Recording) -> Result<Vec<Candidate>, String> {
    let recorded = Settings::of(recording)?;
    let usual = Settings::default();
    let largest =
        recording.events().filter(|event| event.kind == EventKind::Allocate).map(|event| event.bytes);
    let largest = largest.max().unwrap_or(0);
    let mut all = vec![recorded.clone(), usual.clone()];
    all.push(Settings { is_expandable: true, ..usual.clone() });
    // A size that no block reaches has no effect.
    let sizes = [32, 64, 128, 256, 512, 1024].map(|size| size * MIB);
    let splits: Vec<u64> = sizes.into_iter().filter(|size| *size < largest.saturating_mul(2)).collect();
    all.extend(splits.iter().map(|&max_split| Settings { max_split, ..usual.clone() }));
    let divisions = [4, 8, 16].map(|divisions| [divisions; 16]);
    all.extend(divisions.map(|divisions| Settings { divisions, ..usual.clone() }));
    let mut candidates: Vec<Candidate> = Vec::new();
    all.extend([0.6, 0.8].map(|share| Settings { garbage_collection: share, ..usual.clone() }));
    for settings in &all {
        let candidate = Candidate::torch(settings);
        if candidates.iter().all(|known| known.stack != candidate.stack) {
            candidates.push(candidate);
        }
    }
    if let Some(first) = candidates.first_mut() {
        first.is_recorded = true;
    }
    let expandable = Settings { is_expandable: true, ..usual.clone() };
    let splitting = splits.iter().map(|&max_split| Settings { max_split, ..usual.clone() });
    for base in std::iter::once(expandable).chain(splitting) {
        for divisions in divisions {
            let single = Settings { divisions, ..usual.clone() };
            let pair = Candidate::torch(&Settings { divisions, ..base.clone() });
            if candidates.iter().all(|known| known.stack != pair.stack) {
                candidates.push(Candidate { parts: vec![base.to_string(), single.to_string()], ..pair });
            }
        }
    }
    Ok(candidates)
}

/// Returns RMM's resources. Its binning resource has no model here, and takes far more memory than `binning`.
fn rmm() -> Vec<Candidate> {
    let resource = |stack, code: &str, constraint| {
        let line = format!("rmm.mr.set_current_device_resource(rmm.mr.{code})");
        Candidate::plain(stack, Family::Rmm, &line, constraint)
    };
    let cuda = "rmm.mr.CudaMemoryResource()";
    let all = "reserves this much at once, so other users of the GPU cannot have it";
    vec![
        resource(
            "rmm_pool",
            &format!("PoolMemoryResource({cuda}, initial_pool_size=1 << 20)"),
            Some("never returns memory to the driver"),
        ),
        resource(
            "rmm_pool:initial=100%",
            &format!("PoolMemoryResource({cuda}, initial_pool_size={{bytes}})"),
            Some(all),
        ),
        resource(
            "rmm_pool:initial=50%,max=100%",
            &format!(
                "PoolMemoryResource({cuda}, initial_pool_size=({{bytes}}) // 2, maximum_pool_size={{bytes}})"
            ),
            Some("never returns memory to the driver"),
        ),
        resource(
            "rmm_arena:size=100%",
            &format!("ArenaMemoryResource({cuda}, arena_size={{bytes}})"),
            Some(all),
        ),
        resource(
            "cuda_async",
            "CudaAsyncMemoryResource()",
            Some("the model of the driver's pool is less exact than the other models"),
        ),
        Candidate {
            is_plain: true,
            ..resource(
                "cuda",
                "CudaMemoryResource()",
                Some("RMM's default; it calls the driver for each request, and each free waits for the GPU"),
            )
        },
    ]
}
