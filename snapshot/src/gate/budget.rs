//! A memory budget, and the file that contains it.

use std::fmt;
use std::str::FromStr;

use millpond_engine::text::{number_of, plain};
use serde::{Deserialize, Serialize};

use crate::recording::Recording;

/// The default tolerance of reserved bytes, in percent.
const RESERVED_TOLERANCE: f64 = 2.0;

/// The most memory that a recording may use. If a quantity is absent, it is not compared.
///
/// ```
/// let budget: millpond_snapshot::gate::Budget = "peak_reserved_bytes = 1073741824".parse()?;
/// assert_eq!((budget.peak_reserved_bytes, budget.reserved_tolerance_percent), (Some(1 << 30), 2.0));
/// assert!("peak = 1".parse::<millpond_snapshot::gate::Budget>().is_err());
/// # Ok::<(), millpond_snapshot::gate::BudgetError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Budget {
    /// The most requested bytes that may be live at one time.
    #[serde(default)]
    pub peak_allocated_bytes: Option<u64>,
    /// By how many percent a recording may exceed `peak_allocated_bytes`; 0 if it may not exceed that number
    /// at all.
    #[serde(default)]
    pub allocated_tolerance_percent: f64,
    /// The most bytes that the allocator may have reserved at one time.
    #[serde(default)]
    pub peak_reserved_bytes: Option<u64>,
    /// By how many percent a recording may exceed `peak_reserved_bytes`.
    #[serde(default = "reserved_tolerance")]
    pub reserved_tolerance_percent: f64,
    /// The highest allowed ratio of the peak of reserved bytes to the fewest bytes that any allocator needs.
    #[serde(default)]
    pub reserved_over_bound: Option<f64>,
    /// The highest allowed number of failed requests.
    #[serde(default)]
    pub failures: Option<u64>,
}

fn reserved_tolerance() -> f64 {
    RESERVED_TOLERANCE
}

/// The reason why a budget cannot be read, as a sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BudgetError(String);

impl Budget {
    /// Returns the smallest budget that a recording meets.
    pub fn of(recording: &Recording) -> Self {
        let sums = recording.sums();
        let ratio = sums.peak_reserved_bytes.filter(|_| sums.peak_live_bytes > 0);
        let tolerated = 1.0 + RESERVED_TOLERANCE / 100.0;
        let over_bound = |reserved: u64| reserved as f64 / sums.peak_live_bytes as f64 * tolerated;
        Self {
            peak_allocated_bytes: Some(sums.peak_live_bytes),
            allocated_tolerance_percent: 0.0,
            peak_reserved_bytes: sums.peak_reserved_bytes,
            reserved_tolerance_percent: RESERVED_TOLERANCE,
            reserved_over_bound: ratio.map(|reserved| (over_bound(reserved) * 1e4).ceil() / 1e4),
            failures: Some(sums.failures),
        }
    }

    /// Returns the reasons why a budget [of](Self::of) this recording may be wrong, one sentence each. There
    /// are none if the recording is a whole run without a failed request.
    pub fn warnings(&self, recording: &Recording) -> Vec<String> {
        let file = plain(recording.file());
        let failed = self.failures.filter(|failures| *failures > 0).map(|failures| {
            let requests = number_of(failures, "failed request");
            format!(
                "{file}: this run has {requests}, and the budget allows as many; write the budget from a run \
                 without failures, or change the line `failures` to 0"
            )
        });
        let doubts =
            recording.doubts().map(|doubt| format!("{file}: the budget may be too low: {}", doubt.text));
        failed.into_iter().chain(doubts).collect()
    }

    fn checked(self) -> Result<Self, BudgetError> {
        let fail = |text: &str| Err(BudgetError(text.to_owned()));
        let is_amount = |number: f64| number.is_finite() && number >= 0.0;
        if !is_amount(self.allocated_tolerance_percent) || !is_amount(self.reserved_tolerance_percent) {
            return fail("a tolerance must be 0 percent or more");
        }
        if self.reserved_over_bound.is_some_and(|ratio| !is_amount(ratio)) {
            return fail("`reserved_over_bound` must be a ratio such as 1.2");
        }
        let is_empty = self.peak_allocated_bytes.is_none()
            && self.peak_reserved_bytes.is_none()
            && self.reserved_over_bound.is_none()
            && self.failures.is_none();
        if is_empty {
            return fail("the budget names no quantity; write for example peak_allocated_bytes = 1073741824");
        }
        Ok(self)
    }
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let budget: Self = toml::from_str(text).map_err(|error| BudgetError(error.to_string()))?;
        budget.checked()
    }
}

impl fmt::Display for Budget {
    /// Writes the budget file, with a comment for each line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# A memory budget for `millpond-replay gate`. It compares only the lines in this file."
        )?;
        if let Some(bytes) = self.peak_allocated_bytes {
            writeln!(f, "\n# The most requested bytes that are live at one time.")?;
            writeln!(f, "peak_allocated_bytes = {bytes}")?;
            writeln!(f, "allocated_tolerance_percent = {:?}", self.allocated_tolerance_percent)?;
        }
        if let Some(bytes) = self.peak_reserved_bytes {
            writeln!(
                f,
                "\n# The most bytes that the allocator has reserved at one time. The number depends on its \
                 history."
            )?;
            writeln!(f, "peak_reserved_bytes = {bytes}")?;
            writeln!(f, "reserved_tolerance_percent = {:?}", self.reserved_tolerance_percent)?;
        }
        if let Some(ratio) = self.reserved_over_bound {
            writeln!(
                f,
                "\n# The most reserved bytes, divided by the fewest bytes that any allocator needs."
            )?;
            writeln!(f, "reserved_over_bound = {ratio:?}")?;
        }
        if let Some(failures) = self.failures {
            writeln!(f, "\n# The number of failed requests.\nfailures = {failures}")?;
        }
        Ok(())
    }
}
