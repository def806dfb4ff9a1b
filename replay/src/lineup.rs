//! The standard line-up: the stacks that replay a log if the user names none.

use millpond_core::stack::StackSpec;
use millpond_core::{ByteSize, format_bytes};
use millpond_engine::DeviceFigures;
use millpond_engine::program::LogSummary;

/// The stacks that can replay any log, as [`StackSpec`] reads them, with their bases first. To add such a
/// stack, add a line.
const ALWAYS: [&str; 6] = ["cuda", "managed", "cuda_async", "cuda+pool", "cuda+binning", "cuda+pool+binning"];

/// On a GPU, managed memory replays a log only if the log needs at most 1/`MANAGED_SHARE` of the free memory.
/// A larger log takes too long, because the driver migrates managed memory page by page.
const MANAGED_SHARE: u64 = 4;

/// Blocks of one size replay a log only if they need at most this many times the log's peak of live bytes.
const FIXED_SIZE_WASTE: u64 = 4;

/// A stack of the line-up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Entry {
    /// A stack to replay through.
    Run(StackSpec),
    /// A stack to leave out.
    Skip {
        /// The stack.
        spec: StackSpec,
        /// The reason.
        reason: String,
    },
}

/// Returns the line-up for this log on this device. The model of the program's present allocator comes first,
/// if there is one.
pub fn standard(log: &LogSummary, device: &DeviceFigures) -> Vec<Entry> {
    let always = ALWAYS.iter().map(|text| (*text).to_owned());
    let texts = present(log).into_iter().chain(always).chain(fixed_size(log, device));
    // The texts are constants or written by the model, and tests read them.
    texts.filter_map(|text| text.parse().ok()).map(|spec| entry(spec, log, device)).collect()
}

/// Returns the stacks of the line-up that cache freed memory. If the user names no stacks, `bench` measures
/// these.
pub fn pools() -> Vec<StackSpec> {
    let stacks = ALWAYS.iter().filter_map(|text| text.parse::<StackSpec>().ok());
    stacks.filter(|stack| stack.layers().len() > 1).collect()
}

/// Returns the model of the allocator that the program used when the log was written. For a log with RMM's
/// columns, this is RMM's pool.
fn present(log: &LogSummary) -> Option<String> {
    let is_of_rmm = log.imported_from.is_none() && !log.is_of_millpond;
    log.recorded_with.clone().or_else(|| is_of_rmm.then(|| "rmm_pool".to_owned()))
}

fn entry(spec: StackSpec, log: &LogSummary, device: &DeviceFigures) -> Entry {
    let limit = device.free_bytes / MANAGED_SHARE;
    let is_managed = spec.layers().iter().any(|layer| layer.name == "managed");
    if is_managed && !device.simulated && log.peak_live_bytes > limit {
        let reason = format!(
            "the log needs {}, more than a quarter of the GPU's free memory, so managed memory would thrash; \
             to replay the log anyway, pass --stack managed",
            format_bytes(log.peak_live_bytes)
        );
        return Entry::Skip { spec, reason };
    }
    Entry::Run(spec)
}

/// Returns a stack whose blocks are all as large as the largest request; `None` if these blocks waste too
/// much memory.
fn fixed_size(log: &LogSummary, device: &DeviceFigures) -> Option<String> {
    let block_bytes = log.largest_request_bytes.max(1).checked_next_multiple_of(256)?;
    let needed = block_bytes.checked_mul(log.peak_live_blocks)?;
    let most = log.peak_live_bytes.saturating_mul(FIXED_SIZE_WASTE).min(device.free_bytes);
    (needed > 0 && needed <= most)
        .then(|| format!("cuda+fixed_size:block_size={}", ByteSize::Bytes(block_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(simulated: bool, free_bytes: u64) -> DeviceFigures {
        let spec = millpond_driver::DeviceSpec::SimH200;
        let mut figures = DeviceFigures::new(&spec, &spec.open_new().unwrap()).unwrap();
        (figures.simulated, figures.free_bytes) = (simulated, free_bytes);
        figures
    }

    fn log(blocks: u64, largest: u64, live: u64) -> LogSummary {
        let mut summary = LogSummary::default();
        (summary.peak_live_blocks, summary.largest_request_bytes) = (blocks, largest);
        summary.peak_live_bytes = live;
        summary
    }

    #[test]
    fn every_stack_of_the_line_up_is_read_and_built_on_names_that_exist() {
        let entries = standard(&log(3, 1000, 3000), &device(true, 1 << 30));
        assert_eq!(entries.len(), ALWAYS.len() + 2);
        let table = crate::compare::layers();
        for entry in entries {
            let Entry::Run(spec) = entry else { panic!("{entry:?}") };
            let driver = millpond_driver::DeviceSpec::SimH200.open().unwrap();
            assert!(spec.build(&table, &driver).is_ok(), "{spec}");
        }
    }

    #[test]
    fn the_present_allocator_comes_first_if_the_log_tells_which_it_is() {
        let first = |imported_from: Option<&str>, recorded_with: Option<&str>, is_of_millpond| {
            let mut log = log(3, 1000, 3000);
            log.imported_from = imported_from.map(str::to_owned);
            log.recorded_with = recorded_with.map(str::to_owned);
            log.is_of_millpond = is_of_millpond;
            match standard(&log, &device(true, 1 << 30)).swap_remove(0) {
                Entry::Run(spec) => spec.to_string(),
                entry @ Entry::Skip { .. } => panic!("{entry:?}"),
            }
        };
        assert_eq!(first(None, None, false), "rmm_pool");
        assert_eq!(first(None, None, true), ALWAYS[0], "millpond wrote the log");
        let torch = "torch:expandable_segments=True";
        assert_eq!(first(Some("PyTorch memory snapshot"), Some(torch), false), torch);
        assert_eq!(first(Some("minimalloc CSV"), None, false), ALWAYS[0]);
    }

    #[test]
    fn pools_are_the_stacks_with_something_above_the_driver() {
        let texts: Vec<String> = pools().iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["cuda+pool", "cuda+binning", "cuda+pool+binning"]);
    }

    #[test]
    fn managed_memory_never_takes_more_than_a_gpu_has_free() {
        let skipped = |simulated, live| {
            let entries = standard(&log(1, live, live), &device(simulated, 400));
            entries
                .iter()
                .any(|entry| matches!(entry, Entry::Skip { spec, .. } if spec.to_string() == "managed"))
        };
        assert!(skipped(false, 101));
        assert!(!skipped(false, 100));
        assert!(!skipped(true, 101));
    }

    #[test]
    fn fixed_size_is_there_only_for_logs_of_like_sizes() {
        let device = device(true, 1 << 30);
        let block = |log: &LogSummary| fixed_size(log, &device);
        assert_eq!(block(&log(100, 1000, 50_000)).as_deref(), Some("cuda+fixed_size:block_size=1KiB"));
        assert_eq!(block(&log(1000, 1 << 20, 50_000_000)), None);
        assert_eq!(block(&log(2, 1 << 30, 2 << 30)), None, "more than the device has");
        assert_eq!(block(&log(9, u64::MAX, u64::MAX)), None);
        assert_eq!(block(&log(0, 0, 0)), None);
    }
}
