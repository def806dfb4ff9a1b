//! The memory-manager plug-in interface (NBEP 7) over millpond's stacks.
