//! Reads allocation logs and replays them through stacks of memory resources.
