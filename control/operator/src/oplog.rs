//! The operator's log: one line per event on standard error, `time level message`.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Something an operator should know.
pub fn info(message: &str) {
    line("info", message);
}

/// Something that works, but not as it should.
pub fn warn(message: &str) {
    line("warn", message);
}

/// Something that does not work.
pub fn error(message: &str) {
    line("error", message);
}

fn line(level: &str, message: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // One line per event, whatever the message holds.
    let message: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = format!("{}.{:03} {level} {message}\n", now.as_secs(), now.subsec_millis());
    // Nobody can be told that standard error is closed.
    match std::io::stderr().write_all(text.as_bytes()) {
        Ok(()) | Err(_) => {}
    }
}

/// Text for the person who called the program.
pub fn print(text: &str) {
    // A closed pipe means that nobody reads.
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) | Err(_) => {}
    }
}
