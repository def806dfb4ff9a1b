//! Asks again and again, and shows the answers.

use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use millpond_core::watch::ProgramMemory;

use super::super::bench::BenchFormatArg;
use super::super::verdict::{Failure, Verdict, report};
use super::TopArgs;
use super::client::{NoAnswer, ask, find, list};
use super::screen::{Event, Screen};
use super::view;

/// How long a program may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take in a list of programs.
const LIST_PATIENCE: Duration = Duration::from_secs(1);

/// Shows a program, or lists the programs that can be watched.
pub(crate) fn run(args: &TopArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    let Some(process) = args.process else { return show_list(args, out) };
    let (socket, memory) =
        find(process, args.folder.as_deref(), PATIENCE).map_err(|why| Failure::Input(why.into()))?;
    if args.format == BenchFormatArg::Json || args.once {
        print(&memory, None, args.format, &mut out)?;
        return if args.once { Ok(Verdict::Fine) } else { follow(args, &socket, memory, None, out) };
    }
    let screen = Screen::open(&mut out)?;
    if screen.is_none() {
        print(&memory, None, args.format, &mut out)?;
    }
    follow(args, &socket, memory, screen, out)
}

fn print(
    memory: &ProgramMemory,
    before: Option<&ProgramMemory>,
    format: BenchFormatArg,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match format {
        BenchFormatArg::Json => {
            writeln!(out, "{}", serde_json::to_string(memory).map_err(std::io::Error::from)?)?;
        }
        BenchFormatArg::Table => {
            view::lines(memory, before).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
    }
    Ok(out.flush()?)
}

/// Shows the program until it ends or the user leaves.
fn follow(
    args: &TopArgs,
    socket: &Path,
    first: ProgramMemory,
    mut screen: Option<Screen>,
    mut out: impl Write,
) -> Result<Verdict, Failure> {
    let (process, mut now, mut before, mut note) = (first.process, first, None, String::new());
    loop {
        let next = Instant::now() + args.interval;
        if let Some(screen) = &mut screen {
            loop {
                let mut lines = view::lines(&now, before.as_ref());
                if !note.is_empty() {
                    lines.insert(1, note.clone());
                }
                screen.draw(&lines, &mut out)?;
                match screen.wait(next)? {
                    Event::Time => break,
                    Event::Resized => {}
                    Event::Leave => return Ok(Verdict::Fine),
                }
            }
        } else {
            thread::sleep(args.interval);
        }
        match ask(socket, PATIENCE) {
            Ok(memory) => {
                before = Some(std::mem::replace(&mut now, memory));
                note.clear();
                if screen.is_none() {
                    if args.format == BenchFormatArg::Table {
                        writeln!(out)?;
                    }
                    print(&now, before.as_ref(), args.format, &mut out)?;
                }
            }
            Err(NoAnswer::Slow) => {
                note = format!("no answer for {} s: the program may be stopped", PATIENCE.as_secs());
            }
            Err(NoAnswer::Gone) => {
                drop(screen);
                if args.format == BenchFormatArg::Table {
                    writeln!(out, "process {process} has ended")?;
                }
                return Ok(Verdict::Fine);
            }
            Err(NoAnswer::Denied) => return Err(Failure::Input(format!("process {process} refuses").into())),
            Err(NoAnswer::Wrong(why)) => {
                return Err(Failure::Input(format!("process {process}: {why}").into()));
            }
        }
    }
}

fn show_list(args: &TopArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    let (programs, errors) = list(args.folder.as_deref(), LIST_PATIENCE);
    match args.format {
        BenchFormatArg::Json => {
            programs.iter().try_for_each(|memory| print(memory, None, args.format, &mut out))?;
        }
        BenchFormatArg::Table if programs.is_empty() => {
            writeln!(out, "no program can be watched; start one with MILLPOND_WATCH=1")?;
        }
        BenchFormatArg::Table => {
            view::list(&programs).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
    }
    errors.iter().for_each(|why| report(why));
    Ok(Verdict::Fine)
}
