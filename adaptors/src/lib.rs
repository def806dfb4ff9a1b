//! The adaptors of millpond: logging, statistics, thread safety.
