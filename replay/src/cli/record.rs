//! The command line of `record`.

use std::io::Write;

use clap::{Args, ValueEnum};
use millpond_snapshot::record::Framework;

use super::verdict::{Failure, Verdict};

/// Prints the lines that make a program write a file for `explain`
#[derive(Clone, Debug, Args)]
pub(crate) struct RecordArgs {
    /// The framework that allocates the program's memory [default: print the lines for each framework]
    #[arg(value_enum, value_name = "FRAMEWORK")]
    framework: Option<FrameworkArg>,
}

/// The frameworks with which programs allocate memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FrameworkArg {
    /// PyTorch with its own allocator
    Pytorch,
    /// RAPIDS and other programs that allocate with RMM
    Rmm,
    /// CuPy
    Cupy,
    /// Any program, without a change to it
    Any,
    /// Any program that runs under Nsight Systems
    Nsys,
    /// A program that allocates with millpond
    Millpond,
}

impl From<FrameworkArg> for Framework {
    fn from(framework: FrameworkArg) -> Self {
        match framework {
            FrameworkArg::Pytorch => Self::PyTorch,
            FrameworkArg::Rmm => Self::Rmm,
            FrameworkArg::Cupy => Self::CuPy,
            FrameworkArg::Any => Self::Any,
            FrameworkArg::Nsys => Self::Nsys,
            FrameworkArg::Millpond => Self::Millpond,
        }
    }
}

/// Prints the lines.
pub(super) fn run(args: &RecordArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    if let Some(framework) = args.framework {
        Framework::from(framework).print(&mut out)?;
        return Ok(Verdict::Fine);
    }
    for (number, framework) in Framework::ALL.into_iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        framework.print(&mut out)?;
    }
    Ok(Verdict::Fine)
}
