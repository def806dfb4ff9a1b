//! Each thread's present activity, and for how long it has lasted.

use std::cell::OnceCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often the watchdog checks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// One thread's entry.
#[derive(Debug, Default)]
struct Line {
    /// Counts everything that the thread begins and ends.
    steps: AtomicU64,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// The running programs, innermost last: seed and stack text.
    programs: Vec<(u64, String)>,
    /// The layers being called, innermost last.
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

/// Ends a program or a call when dropped.
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

/// Records that the current thread runs a program with this seed over this stack, until the returned value is
/// dropped.
pub fn program(seed: u64, stack: &str) -> Watch {
    mine(|line| {
        line.steps.fetch_add(1, Ordering::Relaxed);
        line.now.lock().programs.push((seed, stack.to_owned()));
    });
    Watch(What::Program)
}

/// Records that the current thread makes progress.
pub fn step() {
    mine(|line| line.steps.fetch_add(1, Ordering::Relaxed));
}

/// Records that the current thread calls a layer, or another part of a stack that is called directly.
pub fn call(layer: &'static str) -> Watch {
    mine(|line| {
        line.steps.fetch_add(1, Ordering::Relaxed);
        line.now.lock().layers.push(layer);
    });
    Watch(What::Call)
}

/// A thread that makes no progress.
#[derive(Clone, Debug)]
pub struct Hang {
    /// The program's seed, if one runs on the thread.
    pub seed: Option<u64>,
    /// The stack's text.
    pub stack: String,
    /// The layers being called, innermost last.
    pub layers: Vec<&'static str>,
    /// For how long the thread has made no progress.
    pub since: Duration,
    line: Weak<Line>,
}

impl Hang {
    /// Stops watching the thread, because it may hang.
    pub fn give_up(&self) {
        BOARD.lock().retain(|line| !Weak::ptr_eq(line, &self.line));
    }

    /// Returns the innermost layer being called.
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

/// Returns a thread that has made no progress for `limit`, if there is one. If there are several, returns the
/// thread with the most nested calls, because the others may wait for it. The first check of a thread counts
/// as progress.
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

/// Watches all threads, and calls a function for a thread that hangs. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Calls `bark` at each check that finds a thread without progress for `limit`.
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

    /// Prints the hanging thread and ends the process, because a hanging thread cannot be ended alone.
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
            // The thread panics only if its function does.
            let _ = thread.join();
        }
    }
}
