//! Containers over millpond's memory resources.
