//! Code lines that make a program write a file that [`import`](crate::import) can read.

use std::io::{self, Write};

use crate::recording::{Recording, Source};

/// The framework that allocates a program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Framework {
    /// PyTorch with its own allocator.
    PyTorch,
    /// RAPIDS and other programs that allocate with RMM.
    Rmm,
    /// CuPy.
    CuPy,
    /// Any program that runs under `millpond-replay run`.
    Any,
    /// Any program that runs under Nsight Systems.
    Nsys,
    /// A program that allocates with millpond.
    Millpond,
}

impl Framework {
    /// All frameworks.
    pub const ALL: [Self; 6] = [Self::PyTorch, Self::Rmm, Self::CuPy, Self::Any, Self::Nsys, Self::Millpond];

    /// Returns a sentence about the data that the lines record.
    pub fn about(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "PyTorch: blocks, call stacks, streams, segments and failed requests of its allocator"
            }
            Self::Rmm => "RMM: blocks, threads and streams, one file for each device",
            Self::CuPy => "CuPy: blocks and streams, through RMM",
            Self::Any => "any program: all memory that it takes from the driver, and call stacks",
            Self::Nsys => "any program, with Nsight Systems: all memory that it takes from the driver",
            Self::Millpond => "millpond: blocks, threads, streams and times of its default resource",
        }
    }

    /// Returns the lines to add to a program, or the commands to run.
    pub fn lines(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "\
import torch
# Before the model is made. With the default stacks=\"all\", one dump took 461 s instead of 4 s, to find the
# names of C++ functions (https://github.com/pytorch/torchtitan/pull/3628).
torch.cuda.memory._record_memory_history(max_entries=1000000, stacks=\"python\")
try:
    main()  # your program
finally:
    torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")
"
            }
            Self::Rmm => {
                "\
import rmm
rmm.reinitialize(logging=True, log_file_name=\"rmm.csv\")  # first of all; writes rmm.dev0.csv
"
            }
            Self::CuPy => {
                "\
import cupy, rmm
from rmm.allocators.cupy import rmm_cupy_allocator
rmm.reinitialize(logging=True, log_file_name=\"cupy.csv\")  # first of all; writes cupy.dev0.csv
cupy.cuda.set_allocator(rmm_cupy_allocator)
"
            }
            Self::Any => "millpond-replay run --record log.csv -- PROGRAM\n",
            Self::Nsys => {
                "\
nsys profile --cuda-memory-usage=true --output profile PROGRAM
nsys export --type sqlite --output profile.sqlite profile.nsys-rep
"
            }
            Self::Millpond => {
                "MILLPOND_STACK='cuda+pool+logging:file=millpond.csv,columns=extended' PROGRAM\n"
            }
        }
    }

    /// Returns the name of the file that the lines write.
    pub fn file(self) -> &'static str {
        match self {
            Self::PyTorch => "snapshot.pickle",
            Self::Rmm => "rmm.dev0.csv",
            Self::CuPy => "cupy.dev0.csv",
            Self::Any => "log.csv",
            Self::Nsys => "profile.sqlite",
            Self::Millpond => "millpond.csv",
        }
    }

    /// Returns the framework that wrote a recording, if the framework's [`lines`](Self::lines) would record
    /// data that the file lacks. Otherwise returns `None`.
    pub fn to_record_again(recording: &Recording) -> Option<Self> {
        let framework = match recording.source().format.as_str() {
            Source::PYTORCH | Source::PYTORCH_MESSAGE | Source::PYTORCH_TRACE => Self::PyTorch,
            Source::RMM | Source::RMM_DEBUG | Source::RMM_MESSAGE => Self::Rmm,
            "Nsight Systems export" => Self::Any,
            Source::MILLPOND | Source::MILLPOND_LOG => Self::Millpond,
            _ => return None,
        };
        let missing = [
            "no_trace",
            "began_late",
            "ring_wrapped",
            "no_completions",
            "no_requests",
            "no_stacks",
            "no_times",
            "no_sizes",
            "no_frees",
        ];
        let is_missing = recording.unknowns().iter().any(|unknown| missing.contains(&unknown.code.as_str()));
        is_missing.then_some(framework)
    }

    /// Prints the lines, a description of the data that they record, and the command that explains the file.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn print(self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "# {}", self.about())?;
        write!(out, "{}", self.lines())?;
        writeln!(out, "# then: millpond-replay explain {}", self.file())
    }
}
