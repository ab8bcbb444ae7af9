//! Clients that ask, wait for the answer and ask again after a pause, as users do, and remember how long each answer took.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::RawClient;
use crate::wait::pause;

/// An answer and how long it took.
#[derive(Clone, Debug)]
pub struct Answer {
    /// When it was asked for.
    pub at: Instant,
    pub took: Duration,
    pub status: u16,
    /// The reason that the proxy gives, where the answer is its own.
    pub code: Option<String>,
}

/// Clients that ask again `gap` after each answer, until dropped.
#[derive(Debug)]
pub struct Callers {
    answers: Arc<Mutex<Vec<Answer>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Callers {
    /// Starts `clients` connections that ask for `path`, spread over the first `gap`.
    #[must_use]
    pub fn start(address: SocketAddr, path: &'static str, clients: usize, gap: Duration) -> Self {
        let answers: Arc<Mutex<Vec<Answer>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let ask = |number: u32| {
            let (answers, stop) = (Arc::clone(&answers), Arc::clone(&stop));
            let of = u32::try_from(clients).unwrap_or(u32::MAX);
            std::thread::spawn(move || {
                // Users do not ask all at once.
                pause(gap * number / of);
                let request = format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n");
                let mut client = RawClient::connect(address);
                while !stop.load(Ordering::Acquire) {
                    let began = Instant::now();
                    client.send(&request);
                    let response = client.response("GET");
                    let (took, status, code) = (began.elapsed(), response.status, response.code());
                    if response.field("connection") == Some("close") {
                        client = RawClient::connect(address);
                    }
                    let answer = Answer { at: began, took, status, code };
                    answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
                    pause(gap);
                }
            })
        };
        let threads = (0..clients).zip(0..).map(|(_, number)| ask(number)).collect();
        Self { answers, stop, threads }
    }

    /// Those that were asked for since `began`.
    #[must_use]
    pub fn since(&self, began: Instant) -> Vec<Answer> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.iter().filter(|answer| answer.at >= began).cloned().collect()
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a caller panicked");
        }
    }
}
