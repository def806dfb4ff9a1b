//! Redraws a terminal, and reads its keys.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use millpond_engine::text::counted;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Switches to the terminal's second screen, without a cursor and without line wrapping. `LEAVE` switches
/// back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The longest time until a new size of the terminal is noticed.
const LOOK: Duration = Duration::from_millis(100);

/// A terminal that is being redrawn. Dropping the value restores the terminal.
#[derive(Debug)]
pub(super) struct Screen {
    before: Termios,
    size: (usize, usize),
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The time is over.
    Time,
    /// The size of the terminal has changed.
    Resized,
    /// The user wants to leave.
    Leave,
}

impl Screen {
    /// Takes over the terminal. Returns `None` if the input or the output is not a terminal.
    pub(super) fn open(out: &mut impl Write) -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(stdin())?;
        let mut keys = before.clone();
        // Keys arrive at once and are not echoed. Ctrl-C is a key, so that the terminal can be restored.
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(stdin(), OptionalActions::Flush, &keys)?;
        let screen = Self { before, size: size() };
        out.write_all(ENTER.as_bytes())?;
        Ok(Some(screen))
    }

    /// Draws as many lines and columns as the terminal has room for. The last row tells the user how to
    /// leave.
    pub(super) fn draw(&mut self, lines: &[String], out: &mut impl Write) -> io::Result<()> {
        self.size = size();
        out.write_all(frame(lines, self.size).as_bytes())?;
        out.flush()
    }

    /// Waits until the user presses a key to leave, the terminal's size changes, or the time is over.
    pub(super) fn wait(&self, until: Instant) -> io::Result<Event> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Event::Time);
            }
            if size() != self.size {
                return Ok(Event::Resized);
            }
            let left = left.min(LOOK);
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) if leaves(stdin()) => return Ok(Event::Leave),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = io::stdout().write_all(LEAVE.as_bytes()).and_then(|()| io::stdout().flush());
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.before);
    }
}

/// Reads the pressed keys. Returns whether one of them leaves the display: `q`, Ctrl-C, Ctrl-D or the end of
/// the input.
fn leaves(input: impl rustix::fd::AsFd) -> bool {
    let mut keys = [0; 64];
    match read(input, &mut keys) {
        Ok(0) => true,
        Ok(count) => keys[..count].iter().any(|key| matches!(key, b'q' | b'Q' | 3 | 4)),
        Err(error) => error != Errno::INTR && error != Errno::AGAIN,
    }
}

/// The columns and rows of the terminal.
fn size() -> (usize, usize) {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

fn frame(lines: &[String], (columns, rows): (usize, usize)) -> String {
    let hidden = lines.len().saturating_sub(rows.saturating_sub(1));
    let last = match hidden {
        0 => "q: quit".to_owned(),
        more => format!("q: quit; {} below the screen", counted(more as u64, "more line")),
    };
    let shown = lines.iter().take(lines.len() - hidden).chain([&last]);
    let shown: Vec<String> = shown.map(|line| line.chars().take(columns).collect()).collect();
    // The text clears each row to its end, and then the rows below the last one.
    format!("\x1b[H{}\x1b[K\x1b[J", shown.join("\x1b[K\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_into_the_terminal() {
        let lines: Vec<String> = ["one", "two", "three"].map(str::to_owned).into();
        assert_eq!(frame(&lines, (80, 24)), "\x1b[Hone\x1b[K\ntwo\x1b[K\nthree\x1b[K\nq: quit\x1b[K\x1b[J");
        assert_eq!(frame(&lines, (4, 3)), "\x1b[Hone\x1b[K\ntwo\x1b[K\nq: q\x1b[K\x1b[J");
        for rows in 0..4 {
            assert!(frame(&lines, (80, rows)).lines().count() <= rows.max(1));
        }
    }

    #[test]
    fn some_keys_leave() {
        for (keys, expected) in [(&b"x\x1b[A"[..], false), (b"xq", true), (b"\x03", true), (b"", true)] {
            let (input, mut to) = std::os::unix::net::UnixStream::pair().unwrap();
            to.write_all(keys).unwrap();
            drop(to);
            assert_eq!(leaves(&input), expected, "{keys:?}");
        }
    }
}
