//! PyTorch's own caching allocator as a layer: `pytorch`.
//!
//! The allocator runs in another process, on a simulated device with as much memory as this process's device
//! has free. Each segment that it reserves there is reserved from this process's driver, too. So a replay
//! has the figures that it has for other stacks, except the times, and except driver calls for streams and
//! events.

mod mirror;
mod program;
mod server;

use std::path::PathBuf;

use millpond_core::driver::DriverResult;
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{AnyResource, ByteSize, Driver, DriverError, DriverHandle, Error, Result, StreamRef};
use rustc_hash::FxHashMap;

use super::resource::{Model, Peer};
use super::torch::settings::Settings;
use mirror::Mirror;
use program::Program;
use server::{Answer, Request, Server};

/// The last setting, `ties`, tells versions of PyTorch apart.
const SETTINGS: usize = Settings::PARAMS.len() - 1;

/// The settings of the model `torch` that PyTorch has, too, and the folder of PyTorch.
const PARAMS: [(&str, &str); SETTINGS + 1] = {
    let folder = ("folder", "where PyTorch is installed (default: the one that `python3` imports)");
    let mut params = [folder; SETTINGS + 1];
    let mut at = 0;
    while at < SETTINGS {
        params[at] = Settings::PARAMS[at];
        at += 1;
    }
    params
};

/// Builds `pytorch` from text.
pub(super) const ENTRY: LayerEntry = LayerEntry {
    name: "pytorch",
    about: "PyTorch's own caching allocator, which runs in another process; without settings, \
            PYTORCH_CUDA_ALLOC_CONF counts",
    params: &PARAMS,
    kind: LayerKind::ReadBase(|params| {
        let (settings, limit) = Settings::read(params, &PARAMS[..SETTINGS])?;
        let folder = params.text("folder")?.map(PathBuf::from);
        Ok(Box::new(move |driver, _| build(settings, limit, folder, driver)))
    }),
};

fn build(
    mut settings: Settings,
    limit: Option<ByteSize>,
    folder: Option<PathBuf>,
    driver: &DriverHandle,
) -> Result<AnyResource> {
    if let Some(limit) = limit {
        settings.limit = limit.resolve(&**driver)?;
    }
    let large_page = settings.large_segment;
    let program = Program::compile(folder.as_deref())?;
    let server = Server::start(program, &settings, driver.mem_get_info()?.free);
    let server = server.map_err(|why| Error::invalid_argument(format!("PyTorch's allocator: {why}")))?;
    let original = Original {
        server,
        mirror: Mirror::new(large_page),
        theirs: FxHashMap::default(),
        streams: FxHashMap::default(),
        reserved: 0,
    };
    Ok(Peer::erased(driver, format!("py{settings}"), original))
}

/// The allocator in its process, and its memory from this process's driver.
#[derive(Debug)]
struct Original {
    server: Server,
    mirror: Mirror,
    /// Each live block's address in the other process.
    theirs: FxHashMap<u64, u64>,
    /// The numbers of the streams in the other process.
    streams: FxHashMap<u64, u64>,
    reserved: u64,
}

impl Original {
    fn number(&mut self, stream: StreamRef) -> u64 {
        if stream.is_legacy() {
            return 0;
        }
        let next = self.streams.len() as u64 + 1;
        *self.streams.entry(stream.id().get()).or_insert(next)
    }

    /// Asks for an answer, and repeats what happened to segments. Returns the address that the answer has;
    /// `None` if there was no memory.
    fn ask(&mut self, driver: &dyn Driver, request: Request) -> DriverResult<Option<u64>> {
        self.server.send(request).map_err(failure)?;
        loop {
            match self.server.receive().map_err(failure)? {
                Answer::Changed(change) => {
                    if !self.mirror.repeat(driver, change)? {
                        return Err(failure(format!("this device has no room for its {change:?}")));
                    }
                }
                Answer::Ended { address, reserved } => {
                    self.reserved = reserved;
                    return Ok(address);
                }
            }
        }
    }
}

/// Returns the error for an allocator that can serve nothing more.
fn failure(why: String) -> DriverError {
    DriverError::new(DriverError::ILLEGAL_STATE, "PyTorch's allocator").with_detail(why)
}

impl Model for Original {
    fn allocate(&mut self, driver: &dyn Driver, bytes: u64, stream: StreamRef) -> DriverResult<Option<u64>> {
        let stream = self.number(stream);
        let Some(theirs) = self.ask(driver, Request::Allocate { bytes, stream })? else { return Ok(None) };
        let unknown = || failure(format!("its block at {theirs:#x} is in no segment"));
        let address = self.mirror.address_of(theirs).ok_or_else(unknown)?;
        self.theirs.insert(address, theirs);
        Ok(Some(address))
    }

    fn free(
        &mut self,
        _driver: &dyn Driver,
        address: u64,
        _bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let stream = self.number(stream);
        // The live blocks are known to the caller, too.
        let Some(address) = self.theirs.remove(&address) else { return Ok(()) };
        self.server.send(Request::Free { address, stream }).map_err(failure)
    }

    fn trim(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        self.ask(driver, Request::Trim).map(drop)
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    fn free_blocks(&self) -> (u64, u64) {
        (0, 0)
    }

    fn release_all(&mut self, driver: &dyn Driver) {
        if let Err(error) = self.mirror.release_all(driver) {
            tracing::error!(target: "millpond::replay", %error, "PyTorch's memory could not be returned to \
                the driver");
        }
    }
}
