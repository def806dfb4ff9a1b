//! Reads a log on a separate thread. One core decompresses and parses rows, and another core processes them.

use std::panic::resume_unwind;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use crate::log::{Event, LogError, LogReader};

/// The number of rows in a batch (about 120 KiB).
const BATCH: usize = 1024;

/// The most batches that wait to be processed.
const WAITING: usize = 4;

/// A row, and whether the log is truncated at this row.
type Row = (Result<Event, LogError>, bool);

/// Calls `each` for every row of the log in order, until `each` fails. `each` also gets whether the log is
/// truncated at the row. Another thread reads the rows ahead.
///
/// ```
/// use millpond_engine::log::{LogError, LogReader};
/// let text = "Thread,Time,Action,Pointer,Size,Stream\n7,0,allocate,0x7f00,1000,0\n";
/// let mut reader = LogReader::from_reader("example", text.as_bytes())?;
/// let mut bytes = 0;
/// millpond_engine::program::for_each_row(&mut reader, |row, _| {
///     bytes += row?.bytes;
///     Ok::<(), LogError>(())
/// })?;
/// assert_eq!(bytes, 1000);
/// # Ok::<(), LogError>(())
/// ```
///
/// # Errors
/// Returns the error of `each`.
pub fn for_each_row<E>(
    reader: &mut LogReader<'_>,
    mut each: impl FnMut(Result<Event, LogError>, bool) -> Result<(), E>,
) -> Result<(), E> {
    thread::scope(|scope| {
        let (sender, batches) = mpsc::sync_channel(WAITING);
        let rows = &mut *reader;
        let Ok(thread) =
            thread::Builder::new().name("rows".to_owned()).spawn_scoped(scope, || send(rows, sender))
        else {
            return Ok(false); // without a thread, reading takes longer
        };
        let done = batches.into_iter().flatten().try_for_each(|(row, is_cut_off)| each(row, is_cut_off));
        // The scope would wait for the thread's work, but not for the end of the thread.
        thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        done.map(|()| true)
    })
    .and_then(|done| if done { Ok(()) } else { read_here(reader, each) })
}

fn send(reader: &mut LogReader<'_>, batches: SyncSender<Vec<Row>>) {
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        while batch.len() < BATCH
            && let Some(row) = reader.next()
        {
            batch.push((row, reader.is_broken()));
        }
        let is_last = batch.len() < BATCH;
        // The receiver stops after an error.
        if batches.send(batch).is_err() || is_last {
            return;
        }
    }
}

fn read_here<E>(
    reader: &mut LogReader<'_>,
    mut each: impl FnMut(Result<Event, LogError>, bool) -> Result<(), E>,
) -> Result<(), E> {
    while let Some(row) = reader.next() {
        each(row, reader.is_broken())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

    fn log(rows: usize) -> String {
        (0..rows).fold(HEADER.to_owned(), |log, row| log + &format!("1,0,free,0x100,{row},0\n"))
    }

    #[test]
    fn rows_come_in_order_and_all_of_them() {
        for rows in [0, 1, BATCH - 1, BATCH, BATCH + 1, 10 * BATCH + 7] {
            let text = log(rows);
            let reader = || LogReader::from_reader("log", text.as_bytes()).unwrap();
            let (mut beside, mut here) = (Vec::new(), Vec::new());
            let collect = |sizes: &mut Vec<u64>, row: Result<Event, LogError>| {
                sizes.push(row?.bytes);
                Ok::<(), LogError>(())
            };
            for_each_row(&mut reader(), |row, _| collect(&mut beside, row)).unwrap();
            read_here(&mut reader(), |row, _| collect(&mut here, row)).unwrap();
            let expected: Vec<u64> = (0..rows as u64).collect();
            assert!(beside == expected && here == expected, "{rows} rows");
        }
    }

    #[test]
    fn a_reader_that_has_seen_enough_ends_the_thread() {
        let text = log(100 * BATCH);
        let mut reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
        let mut seen = 0;
        let stop = |_, _| {
            seen += 1;
            if seen == 5 { Err("enough") } else { Ok(()) }
        };
        assert_eq!(for_each_row(&mut reader, stop), Err("enough"));
        assert_eq!(seen, 5);
    }
}
