//! The kinds of refusals, and counts by kind.

/// What refused a request for memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FailureKind {
    /// A resource had no memory: the device or the host has too little, or a pool may hold no more.
    #[default]
    Memory,
    /// A layer `limiting` refused the request.
    Limit,
    /// A budget refused the request.
    Budget,
}

impl FailureKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Limit, Self::Budget];

    /// Returns the name of the kind: `memory`, `limit` or `budget`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Limit => "limit",
            Self::Budget => "budget",
        }
    }
}

/// The numbers of requests that failed, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FailureCounts {
    /// Requests for which a resource had no memory.
    pub memory: u64,
    /// Requests that a layer `limiting` refused.
    pub limit: u64,
    /// Requests that a budget refused.
    pub budget: u64,
}

impl FailureCounts {
    /// Returns the number of requests that failed in this way.
    pub const fn of(&self, kind: FailureKind) -> u64 {
        match kind {
            FailureKind::Memory => self.memory,
            FailureKind::Limit => self.limit,
            FailureKind::Budget => self.budget,
        }
    }

    /// Returns the number of all requests that failed.
    pub const fn total(&self) -> u64 {
        self.memory + self.limit + self.budget
    }
}
