//! Prints how well the model predicts a recording.

use std::io::{self, Write};

use millpond_engine::text::{bytes_among, number_of, plain};

use super::Fidelity;

/// The text that explains why a model with garbage collection differs if it has no limit.
pub(crate) const LACKS_LIMIT: &str = "garbage_collection_threshold is a share of the process's memory limit, \
     which is not in the file; pass the limit with fidelity --limit SIZE";

/// Prints the comparison for people.
///
/// # Errors
/// Writing to `out` fails.
pub fn print(fidelity: &Fidelity, mut out: impl Write) -> io::Result<()> {
    let Fidelity { file, model, allocations, same_address, segments, same_segment, .. } = fidelity;
    writeln!(out, "{}: PyTorch's allocator against its model `{model}`", plain(file))?;
    let percent = |share: f64| {
        // Prints 100 % only if all agree.
        let tenths = (share * 1000.0).floor() / 10.0;
        format!("{tenths:.1} %")
    };
    let (allocations, segments) = (number_of(*allocations, "allocation"), number_of(*segments, "segment"));
    let address = percent(fidelity.address_share());
    writeln!(out, "  {same_address} of {allocations} placed at the recorded address ({address})")?;
    let taken = percent(fidelity.segment_share());
    writeln!(out, "  {same_segment} of {segments} reserved with the recorded size ({taken})")?;
    let Fidelity { given_back, same_given_back, failures, same_failure, .. } = fidelity;
    if *given_back > 0 {
        let given_back = number_of(*given_back, "segment");
        writeln!(out, "  {same_given_back} of {given_back} returned to the driver as recorded")?;
    }
    if *failures > 0 {
        let failures = number_of(*failures, "failed request");
        writeln!(out, "  {same_failure} of {failures} failed in the model too")?;
    }
    let peaks = [fidelity.peak_reserved, fidelity.model_peak_reserved];
    let [peak, in_model] = peaks.map(|bytes| bytes_among(bytes, &peaks));
    let share = percent(fidelity.reserved_share);
    writeln!(out, "  reserved bytes agree to {share}; their peak is {peak}, in the model {in_model}")?;
    if let Some(first) = &fidelity.first {
        writeln!(out, "  the first difference: {first}")?;
    }
    if fidelity.lacks_limit {
        writeln!(out, "  {LACKS_LIMIT}")?;
    }
    if !fidelity.is_complete {
        writeln!(
            out,
            "  the trace begins late: the model guesses from the memory state in the file which blocks were \
             free"
        )?;
    }
    Ok(())
}
