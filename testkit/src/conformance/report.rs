//! The outcomes of the bodies.

use std::fmt;

/// The outcome of a body.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The resource kept its contract.
    Passed,
    /// The body did not run, for this reason.
    Skipped(&'static str),
    /// The body panicked with this message.
    Failed(String),
}

/// One body's outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the body.
    pub body: &'static str,
    /// The outcome.
    pub outcome: Outcome,
}

/// The suite's findings for one subject. `Display` lists the failed and the skipped bodies.
#[derive(Clone, Debug)]
pub struct Report {
    subject: String,
    findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(subject: &str, findings: Vec<Finding>) -> Self {
        Self { subject: subject.to_owned(), findings }
    }

    /// Returns whether no body failed.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Returns the number of bodies, skipped ones included.
    pub fn bodies(&self) -> usize {
        self.findings.len()
    }

    /// Returns the outcome of each body, in the order in which they ran.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the name and message of each failure.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.findings.iter().filter_map(|finding| match &finding.outcome {
            Outcome::Failed(message) => Some((finding.body, message.as_str())),
            _ => None,
        })
    }

    /// Returns the name and reason of each skipped body.
    pub fn skipped(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.findings.iter().filter_map(|finding| match finding.outcome {
            Outcome::Skipped(reason) => Some((finding.body, reason)),
            _ => None,
        })
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
        Ok(())
    }
}
