//! The outcomes of the tests.

use std::collections::BTreeMap;
use std::fmt;

/// The outcome of one test.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The resource kept its contract.
    Passed,
    /// The test did not run, for this reason.
    Skipped(&'static str),
    /// The test panicked with this message.
    Failed(String),
}

/// One test, and its outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the test.
    pub body: &'static str,
    /// The outcome of the test.
    pub outcome: Outcome,
}

/// The suite's findings for one subject. `Display` lists the tests that failed or were skipped, and the
/// methods of [`Subject`](super::Subject) that enable skipped tests.
#[derive(Clone, Debug)]
pub struct Report {
    subject: String,
    findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(subject: &str, findings: Vec<Finding>) -> Self {
        Self { subject: subject.to_owned(), findings }
    }

    /// Returns whether no test failed. [Skipped](Self::skipped) tests do not count.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Returns the number of tests, including skipped ones.
    pub fn bodies(&self) -> usize {
        self.findings.len()
    }

    /// Returns the outcome of each test, in the order in which the tests ran.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the name and the message of each failed test.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.findings.iter().filter_map(|finding| match &finding.outcome {
            Outcome::Failed(message) => Some((finding.body, message.as_str())),
            _ => None,
        })
    }

    /// Returns the name and the reason of each skipped test.
    pub fn skipped(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.findings.iter().filter_map(|finding| match finding.outcome {
            Outcome::Skipped(reason) => Some((finding.body, reason)),
            _ => None,
        })
    }
}

impl Report {
    /// The methods that enable skipped tests, and how many each enables. A reason names its method at its
    /// end.
    fn enabled_by(&self) -> BTreeMap<&'static str, usize> {
        let mut methods = BTreeMap::new();
        for (_, reason) in self.skipped() {
            if let Some((_, method)) = reason.split_once("; see ") {
                *methods.entry(method).or_default() += 1;
            }
        }
        methods
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, skipped) = (self.failures().count(), self.skipped().count());
        let passed = self.bodies() - failed - skipped;
        write!(f, "`{}`: {passed} passed, {skipped} skipped, {failed} failed", self.subject)?;
        for (body, message) in self.failures() {
            write!(f, "\n  {body}: {message}")?;
        }
        for (body, reason) in self.skipped() {
            write!(f, "\n  {body} was skipped: {reason}")?;
        }
        for (method, bodies) in self.enabled_by() {
            write!(f, "\n  to run {bodies} of the skipped tests, call `{method}`")?;
        }
        Ok(())
    }
}
