//! Counts the tasks of a pool that are planned, and neither committed nor aborted.

/// What a task that is under way means for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It takes a region of this many bytes from upstream.
    Region { bytes: u64 },
    /// It returns regions of this many bytes to upstream.
    Return { bytes: u64 },
    /// It gives other devices access to all that is mapped, so nothing may be unmapped meanwhile.
    Admission,
    /// Any other.
    Other,
}

/// The tasks of a pool that are under way. Any number may be, except that an admission and a release are not
/// at the same time.
#[derive(Debug, Default)]
pub(crate) struct TasksUnderWay {
    count: u32,
    admissions: u32,
    region_bytes: u64,
    returning_bytes: u64,
}

impl TasksUnderWay {
    pub(crate) fn begin(&mut self, kind: Kind) {
        self.count += 1;
        match kind {
            Kind::Region { bytes } => self.region_bytes += bytes,
            Kind::Return { bytes } => self.returning_bytes += bytes,
            Kind::Admission => self.admissions += 1,
            Kind::Other => {}
        }
    }

    pub(crate) fn end(&mut self, kind: Kind) {
        self.count -= 1;
        match kind {
            Kind::Region { bytes } => self.region_bytes -= bytes,
            Kind::Return { bytes } => self.returning_bytes -= bytes,
            Kind::Admission => self.admissions -= 1,
            Kind::Other => {}
        }
    }

    /// Returns whether memory may be unmapped now.
    pub(crate) fn may_release(&self) -> bool {
        self.admissions == 0
    }

    /// Returns whether no task is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bytes of regions that the pool is about to take from upstream.
    pub(crate) fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the bytes of regions that the pool no longer holds and that upstream does not have yet.
    pub(crate) fn returning_bytes(&self) -> u64 {
        self.returning_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region counts for the pool's maximum while it is on its way, and an admission keeps releases away.
    #[test]
    fn tasks_count_from_their_plan_to_their_end() {
        let mut tasks = TasksUnderWay::default();
        assert!(tasks.is_empty() && tasks.may_release());
        let kinds = [Kind::Region { bytes: 300 }, Kind::Admission, Kind::Other, Kind::Region { bytes: 500 }];
        kinds.into_iter().for_each(|kind| tasks.begin(kind));
        assert_eq!((tasks.region_bytes(), tasks.may_release(), tasks.is_empty()), (800, false, false));
        tasks.end(kinds[1]);
        tasks.end(kinds[3]);
        assert_eq!((tasks.region_bytes(), tasks.may_release(), tasks.is_empty()), (300, true, false));
        tasks.end(kinds[0]);
        tasks.end(kinds[2]);
        assert!(tasks.is_empty() && tasks.region_bytes() == 0);
    }
}
