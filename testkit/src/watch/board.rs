//! What each thread is doing, and for how long.

use std::cell::OnceCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often the watchdog looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// One thread.
#[derive(Debug, Default)]
struct Line {
    /// Counts all that the thread begins and ends.
    steps: AtomicU64,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// The programs that run, innermost last: a seed, and the stack's text.
    programs: Vec<(u64, String)>,
    /// The layers that are being called, innermost last.
    layers: Vec<&'static str>,
    seen: Option<(u64, Instant)>,
}

static BOARD: Mutex<Vec<Weak<Line>>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: OnceCell<Arc<Line>> = const { OnceCell::new() };
}

fn mine<T>(act: impl FnOnce(&Line) -> T) -> Option<T> {
    let with = |cell: &OnceCell<Arc<Line>>| {
        let line = cell.get_or_init(|| {
            let line = Arc::new(Line::default());
            BOARD.lock().push(Arc::downgrade(&line));
            line
        });
        act(line)
    };
    MINE.try_with(with).ok()
}

/// Ends a program or a call when it is dropped.
#[must_use = "the program counts as running only while this lives"]
#[derive(Debug)]
pub struct Watch(What);

#[derive(Clone, Copy, Debug)]
enum What {
    Program,
    Call,
}

impl Drop for Watch {
    fn drop(&mut self) {
        mine(|line| {
            line.steps.fetch_add(1, Ordering::Relaxed);
            let mut now = line.now.lock();
            match self.0 {
                What::Program => {
                    now.programs.pop();
                }
                What::Call => {
                    now.layers.pop();
                }
            }
        });
    }
}

/// The current thread runs a program of this seed over this stack, until the returned value is dropped.
pub fn program(seed: u64, stack: &str) -> Watch {
    mine(|line| {
        line.steps.fetch_add(1, Ordering::Relaxed);
        line.now.lock().programs.push((seed, stack.to_owned()));
    });
    Watch(What::Program)
}

/// The current thread goes on.
pub fn step() {
    mine(|line| line.steps.fetch_add(1, Ordering::Relaxed));
}

/// The current thread calls a layer, or another part of a stack that is called past its layers.
pub fn call(layer: &'static str) -> Watch {
    mine(|line| {
        line.steps.fetch_add(1, Ordering::Relaxed);
        line.now.lock().layers.push(layer);
    });
    Watch(What::Call)
}

/// A thread that does not go on.
#[derive(Clone, Debug)]
pub struct Hang {
    /// The seed of the program, if one runs on the thread.
    pub seed: Option<u64>,
    /// The stack's text.
    pub stack: String,
    /// The layers that are being called, innermost last.
    pub layers: Vec<&'static str>,
    /// For how long the thread has not gone on.
    pub since: Duration,
    line: Weak<Line>,
}

impl Hang {
    /// Looks at the thread no more: it may hang.
    pub fn give_up(&self) {
        BOARD.lock().retain(|line| !Weak::ptr_eq(line, &self.line));
    }

    /// The innermost layer that is being called.
    pub fn layer(&self) -> Option<&'static str> {
        self.layers.last().copied()
    }
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, stack, layers, since, .. } = self;
        write!(f, "a call has not returned for {} s", since.as_secs())?;
        match self.layer() {
            Some(layer) => write!(f, ", in the layer `{layer}` (called through {})", layers.join(" > "))?,
            None => f.write_str(", in no layer")?,
        }
        match seed {
            Some(seed) => write!(f, ", of `{stack}`: MILLPOND_SEED={seed}"),
            None => f.write_str(", on a thread of a layer"),
        }
    }
}

/// The thread that has not gone on for `limit`, if there is one; of several, the one with the most calls, as
/// others may wait for it. The first look at a thread counts as its last step.
pub fn hanging(limit: Duration) -> Option<Hang> {
    let lines: Vec<Arc<Line>> = {
        let mut board = BOARD.lock();
        board.retain(|line| line.strong_count() > 0);
        board.iter().filter_map(Weak::upgrade).collect()
    };
    let hangs: Vec<Hang> = lines.iter().filter_map(|line| hanging_line(line, limit)).collect();
    let program = hangs.iter().find(|hang| hang.seed.is_some()).cloned();
    let mut found = hangs.into_iter().max_by_key(|hang| hang.layers.len())?;
    if let (None, Some(program)) = (found.seed, program) {
        found.seed = program.seed;
        found.stack = program.stack;
    }
    Some(found)
}

fn hanging_line(line: &Arc<Line>, limit: Duration) -> Option<Hang> {
    let steps = line.steps.load(Ordering::Relaxed);
    let mut now = line.now.lock();
    if now.programs.is_empty() && now.layers.is_empty() {
        now.seen = None;
        return None;
    }
    let since = match now.seen {
        Some((seen, at)) if seen == steps => at.elapsed(),
        _ => {
            now.seen = Some((steps, Instant::now()));
            return None;
        }
    };
    if since < limit {
        return None;
    }
    let program = now.programs.last();
    Some(Hang {
        seed: program.map(|(seed, _)| *seed),
        stack: program.map(|(_, stack)| stack.clone()).unwrap_or_default(),
        layers: now.layers.clone(),
        since,
        line: Arc::downgrade(line),
    })
}

/// Looks after all threads, and calls a function for one that hangs, until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Calls `bark` for each look at which a thread has not gone on for `limit`.
    pub fn start(limit: Duration, bark: impl Fn(&Hang) + Send + 'static) -> Self {
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            while stopped.recv_timeout(LOOK_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Some(hang) = hanging(limit) {
                    bark(&hang);
                }
            }
        };
        Self { stop: Some(stop), thread: Some(std::thread::spawn(watch)) }
    }

    /// Prints what hangs and ends the process: a thread that hangs cannot be ended alone.
    pub fn abort_after(limit: Duration) -> Self {
        Self::start(limit, |hang| {
            eprintln!("{hang}");
            std::process::abort();
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It panics only if its function does.
            let _ = thread.join();
        }
    }
}
