//! Conformance suite, shadow allocator, scripted mock and operation programs for memory resources.
