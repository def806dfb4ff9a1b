//! Traces of torch.profiler.

use crate::recording::import;

pub(super) fn run(bytes: &[u8]) {
    import(b"{\"traceEvents\":", bytes);
}
