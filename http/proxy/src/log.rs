//! The access log's way off the request path: lines are formatted on the core into its own buffer and handed over
//! in batches; a full queue drops lines and counts them. A plain thread writes them.

use std::cell::{Cell, RefCell};

use core_runtime::mailbox::{SendError, Sender};

/// Whole lines for one sink.
#[derive(Debug)]
pub struct LogBatch {
    /// As in [`crate::snapshot::AccessLogConfig::sink`].
    pub sink: usize,
    pub lines: Vec<u8>,
    pub rows: u64,
}

/// Bytes after which a batch is sent without waiting for the end of the window.
const BATCH_BYTES: usize = 32 * 1024;

/// One core's end of the log.
#[derive(Debug)]
pub struct AccessLog {
    queue: Option<Sender<LogBatch>>,
    /// By sink.
    open: RefCell<Vec<LogBatch>>,
    written: Cell<u64>,
    dropped: Cell<u64>,
}

impl AccessLog {
    /// A log that sends its batches to `queue`.
    pub fn new(queue: Sender<LogBatch>) -> Self {
        let mut log = Self::off();
        log.queue = Some(queue);
        log
    }

    /// A log that writes nothing.
    pub fn off() -> Self {
        Self { queue: None, open: RefCell::default(), written: Cell::new(0), dropped: Cell::new(0) }
    }

    /// Rows handed over, and rows dropped because the writer was behind.
    pub fn counts(&self) -> (u64, u64) {
        (self.written.get(), self.dropped.get())
    }

    /// Whether anybody reads the log.
    pub(crate) fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// Adds a row for `sink`, which `write` appends as one line.
    pub(crate) fn row(&self, sink: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let mut open = self.open.borrow_mut();
        while open.len() <= sink {
            let sink = open.len();
            open.push(LogBatch { sink, lines: Vec::new(), rows: 0 });
        }
        let Some(batch) = open.get_mut(sink) else { return };
        write(&mut batch.lines);
        batch.rows += 1;
        if batch.lines.len() >= BATCH_BYTES {
            self.send(batch);
        }
    }

    /// Hands over what has gathered: called twice a second.
    pub fn flush(&self) {
        for batch in self.open.borrow_mut().iter_mut().filter(|batch| batch.rows > 0) {
            self.send(batch);
        }
    }

    fn send(&self, batch: &mut LogBatch) {
        let Some(queue) = &self.queue else { return };
        let full = LogBatch { sink: batch.sink, lines: std::mem::take(&mut batch.lines), rows: batch.rows };
        let rows = std::mem::take(&mut batch.rows);
        match queue.send(full) {
            Ok(()) => self.written.set(self.written.get() + rows),
            Err(SendError::Full(_) | SendError::Closed(_)) => self.dropped.set(self.dropped.get() + rows),
        }
    }
}

impl Drop for AccessLog {
    /// Exchanges that were cut with their core write their rows while it goes.
    fn drop(&mut self) {
        self.flush();
    }
}
