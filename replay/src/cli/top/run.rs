//! Asks a program repeatedly, and shows the answers.

use std::io::{self, Write};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millpond_core::watch::ProgramMemory;
use millpond_engine::text::write_json;

use super::super::bench::BenchFormatArg;
use super::super::verdict::{Failure, Verdict, report};
use super::TopArgs;
use super::client::{NoAnswer, ask, find, list};
use super::screen::{Event, Screen};
use super::view;

/// How long a program may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long each program in a list of programs may take to answer.
const LIST_PATIENCE: Duration = Duration::from_secs(1);

/// The longest time between an answer and its display.
const LOOK: Duration = Duration::from_millis(10);

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
            write_json(&mut *out, memory)?;
            writeln!(out)?;
        }
        BenchFormatArg::Table => {
            view::lines(memory, before).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
    }
    Ok(out.flush()?)
}

type Answer = Result<ProgramMemory, NoAnswer>;

/// Asks the program after the interval, and returns its answer. Returns `None` if the user leaves while it
/// waits. `wait` waits until a given moment.
fn answer(
    interval: Duration,
    ask: impl FnOnce() -> Answer + Send + 'static,
    mut wait: impl FnMut(Instant) -> io::Result<Event>,
) -> io::Result<Option<Answer>> {
    let (until, mut asked, mut ask) = (Instant::now() + interval, None, Some(ask));
    loop {
        let until = if asked.is_some() { Instant::now() + LOOK } else { until };
        match wait(until)? {
            Event::Leave => return Ok(None),
            Event::Resized => {}
            Event::Time => {
                // The program may be slow, and the user may leave while it works.
                if let Some(ask) = ask.take() {
                    asked = Some(thread::Builder::new().spawn(ask)?);
                }
            }
        }
        if asked.as_ref().is_some_and(JoinHandle::is_finished) {
            let answer = asked.take().map(JoinHandle::join).transpose();
            return answer.map_err(|_| io::Error::other("the thread that asks the program has panicked"));
        }
    }
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
        let answered = if let Some(screen) = &mut screen {
            let mut lines = view::lines(&now, before.as_ref());
            if !note.is_empty() {
                lines.insert(1, note.clone());
            }
            let socket = socket.to_owned();
            screen.draw(&lines, &mut out)?;
            answer(
                args.interval,
                move || ask(&socket, PATIENCE),
                |until| {
                    let event = screen.wait(until)?;
                    if event == Event::Resized {
                        screen.draw(&lines, &mut out)?;
                    }
                    Ok(event)
                },
            )?
        } else {
            thread::sleep(args.interval);
            Some(ask(socket, PATIENCE))
        };
        let Some(answered) = answered else { return Ok(Verdict::Fine) };
        match answered {
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
                note = format!(
                    "no answer for {} s: the program may be suspended (Ctrl+Z) or stopped in a debugger",
                    PATIENCE.as_secs()
                );
            }
            Err(NoAnswer::Gone | NoAnswer::Silent) => {
                drop(screen);
                if args.format == BenchFormatArg::Table {
                    writeln!(out, "process {process} has ended")?;
                }
                return Ok(Verdict::Fine);
            }
            Err(NoAnswer::Denied) => {
                let why = "refuses the connection; run this command as the user of that process, or as root";
                return Err(Failure::Input(format!("process {process} {why}").into()));
            }
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
        // A program that does not answer runs.
        BenchFormatArg::Table if programs.is_empty() && !errors.is_empty() => {}
        BenchFormatArg::Table if programs.is_empty() => {
            writeln!(out, "no watched program runs; start one with MILLPOND_WATCH=1")?;
        }
        BenchFormatArg::Table => {
            view::list(&programs).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
    }
    errors.iter().for_each(|why| report(why));
    Ok(Verdict::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_can_leave_while_the_program_does_not_answer() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let slow = move || {
            let _ = ended.recv();
            Err(NoAnswer::Slow)
        };
        let mut events = [Event::Resized, Event::Time, Event::Time, Event::Leave].into_iter();
        let left = answer(Duration::ZERO, slow, |_| Ok(events.next().expect("the user has left")));
        assert!(left.unwrap().is_none() && events.next().is_none());
        drop(end);
        let wait = |_| {
            thread::yield_now();
            Ok(Event::Time)
        };
        let gone = answer(Duration::ZERO, || Err(NoAnswer::Gone), wait);
        assert!(matches!(gone, Ok(Some(Err(NoAnswer::Gone)))));
    }
}
