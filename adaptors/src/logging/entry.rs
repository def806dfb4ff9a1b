//! The parameters of the log in a stack's text.

use std::sync::Arc;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{Error, Result};

use super::LoggingResourceAdaptor;
use super::layer::LoggingLayer;

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "logging",
    about: "writes a CSV row for every call, as RMM does",
    params: &[
        (
            "file",
            "the file (default: the file that MILLPOND_LOG_FILE or RMM_LOG_FILE names); `{pid}`, `{rank}` \
             and `{device}` in the path stand for the process, its number in a job, and the device",
        ),
        ("columns", "rmm (the default) or extended (also device, alignment, sequence, clock and duration)"),
        (
            "flush",
            "row (the default: an abort loses no row), async (threads of the log write the rows) or buffered \
             (rows are written in blocks of 64 KiB, and at the end of the process); with async and \
             buffered, an abort loses the waiting rows",
        ),
        ("to", "writer, for a program's own writer (default: a file); cannot be built from text"),
    ],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    let mut layer = LoggingLayer::new()
        .columns(params.get("columns")?.unwrap_or_default())
        .flush(params.get("flush")?.unwrap_or_default());
    if params.text("to")?.is_some() {
        return Err(Error::invalid_stack(
            "a log that goes to a program's own writer cannot be built from text; write file=log.csv instead",
        ));
    }
    if let Some(file) = params.path("file")? {
        layer = layer.path(file);
    }
    Ok(Box::new(move |upstream, building| {
        let (adaptor, step) = LoggingResourceAdaptor::made(upstream, layer)?;
        step.into_iter().for_each(|step| building.at_end(step));
        Ok(Arc::new(adaptor))
    }))
}
