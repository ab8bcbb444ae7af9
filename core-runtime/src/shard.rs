//! One shard: a pinned thread, its driver, and the loop.
//!
//! ```text
//!   ┌─► run ready tasks, then the late ones (exec)
//!   │   send what they posted (outbox)
//!   │   statistics of the turn
//!   │   wait for the kernel: not at all if tasks are ready, else until the next timer (driver)
//!   │   read the clock, fire timers, deliver events (clock, timer, io)
//!   └───┘
//! ```

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::Epoch;
use crate::driver::Driver;
pub use crate::driver::{DriverChoice, DriverKind};
use crate::histogram::Histogram;
use crate::{affinity, exec, io as registry, outbox, timer};

/// What one shard is started with.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Number of the shard, from 0.
    pub index: usize,
    /// The CPU to pin to; None leaves the thread where the kernel puts it.
    pub cpu: Option<usize>,
    pub driver: DriverChoice,
    pub epoch: Epoch,
}

thread_local! {
    static TURNS: RefCell<Histogram> = RefCell::default();
}

/// Hands out the lengths of the busy parts of the turns since the last call, as (length, how often).
pub fn drain_turns(take: impl FnMut(Duration, u64)) {
    TURNS.with(|turns| turns.borrow_mut().drain(take));
}

/// Tasks of the calling shard that have panicked since its start.
pub fn panics() -> u64 {
    exec::panics()
}

/// Starts a thread that runs `main` on a reactor of its own, and ends when `main` does. `main` also gets the
/// kind of driver, for the log.
///
/// # Errors
/// When the thread cannot be started. Failing to pin or to set up a driver ends the thread with an error.
pub fn start<M, F>(config: ShardConfig, main: M) -> io::Result<JoinHandle<io::Result<()>>>
where
    M: FnOnce(DriverKind) -> F + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    std::thread::Builder::new().name(format!("shard-{}", config.index)).spawn(move || {
        if let Some(cpu) = config.cpu {
            affinity::pin_thread(cpu)?;
        }
        run(config.driver, &config.epoch, main)
    })
}

/// Runs `main` on the calling thread until it ends; then drops every task that is left.
///
/// # Errors
/// When no driver can be set up, or the kernel fails a wait.
pub fn run<M, F>(choice: DriverChoice, epoch: &Epoch, main: M) -> io::Result<()>
where
    M: FnOnce(DriverKind) -> F,
    F: Future<Output = ()> + 'static,
{
    let (driver, kind) = Driver::new(choice)?;
    registry::install(Some(driver));
    let started = epoch.tick();
    timer::advance(started);
    let ended = Rc::new(Cell::new(false));
    let main = main(kind);
    let flag = Rc::clone(&ended);
    exec::spawn(async move {
        main.await;
        flag.set(true);
    });
    let result = turns(epoch, &ended);
    exec::drop_all();
    settle();
    registry::install(None);
    result
}

/// Lets the kernel act on the registrations that the dropped tasks gave back. A ring that is closed with polls in
/// it is torn down by the kernel some time later, and its listening sockets would take connections meanwhile.
fn settle() {
    // What a removal completes is seen in the round after the one that submits it.
    const ROUNDS_MIN: usize = 3;
    const ROUNDS_MAX: usize = 64;
    for round in 1..=ROUNDS_MAX {
        let waited = registry::with_driver(|driver| driver.wait(Some(Duration::ZERO)));
        let mut is_idle = true;
        while let Ok(Some(_)) = registry::with_driver(|driver| Ok(driver.next_event())) {
            is_idle = false;
        }
        if waited.is_err() || (is_idle && round >= ROUNDS_MIN) {
            return;
        }
    }
}

fn turns(epoch: &Epoch, ended: &Cell<bool>) -> io::Result<()> {
    let mut turn_started = epoch.read();
    loop {
        exec::run_turn();
        outbox::send_all();
        if ended.get() {
            return Ok(());
        }
        let busy_until = epoch.read();
        TURNS.with(|turns| turns.borrow_mut().record(busy_until.saturating_sub(turn_started)));
        let timeout = if exec::has_ready() { Some(Duration::ZERO) } else { timer::until_next(busy_until) };
        registry::with_driver(|driver| driver.wait(timeout))?;
        turn_started = epoch.tick();
        timer::advance(turn_started);
        while let Some((token, events)) = registry::with_driver(|driver| Ok(driver.next_event()))? {
            registry::deliver(token, events);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::buf::Buf;
    use crate::net::{BindOptions, ConnectError, ListeningSocket, TcpStream};
    use crate::{spawn, turn_end, yield_now};

    fn on_each_driver(test: impl Fn(DriverChoice)) {
        test(DriverChoice::Ring);
        test(DriverChoice::Epoll);
    }

    fn local() -> SocketAddr {
        "127.0.0.1:0".parse().expect("an address")
    }

    async fn read_some(stream: &TcpStream, buf: &mut Buf) -> io::Result<usize> {
        std::future::poll_fn(|cx| {
            loop {
                std::task::ready!(stream.poll_readable(cx));
                match stream.try_read_buf(buf) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    other => return std::task::Poll::Ready(other),
                }
            }
        })
        .await
    }

    #[test]
    fn bytes_go_there_and_back_on_both_drivers() {
        on_each_driver(|choice| {
            let epoch = Epoch::start();
            run(choice, &epoch, |_kind| async {
                let socket = ListeningSocket::bind(local(), BindOptions::default()).expect("bind");
                let addr = socket.addr();
                let listener = socket.open().expect("open");
                spawn(async move {
                    let accepted = listener.accept().await.expect("accept");
                    let stream = TcpStream::from_fd(accepted.fd).expect("register");
                    let mut buf = Buf::try_take().expect("a buffer");
                    loop {
                        if read_some(&stream, &mut buf).await.expect("read") == 0 {
                            break;
                        }
                        let sent = stream.try_write(buf.filled()).expect("small writes fit");
                        buf.consume(sent);
                    }
                });
                let client = TcpStream::connect(addr, Duration::from_secs(5)).await.expect("connect");
                let mut buf = Buf::try_take().expect("a buffer");
                for round in 0..100u32 {
                    client.try_write(&round.to_be_bytes()).expect("write");
                    while buf.len() < 4 {
                        assert_ne!(read_some(&client, &mut buf).await.expect("read"), 0);
                    }
                    assert_eq!(buf.filled(), round.to_be_bytes());
                    buf.consume(4);
                }
                assert!(client.is_quiet());
                client.shutdown_write().expect("shutdown");
                assert_eq!(read_some(&client, &mut buf).await.expect("read"), 0, "the echo ends too");
                assert!(!client.is_quiet(), "an ended stream is not fit for reuse");
            })
            .expect("the loop ran");
        });
    }

    #[test]
    fn connect_errors_are_told_apart() {
        on_each_driver(|choice| {
            run(choice, &Epoch::start(), |_kind| async {
                let socket = ListeningSocket::bind(local(), BindOptions::default()).expect("bind");
                let addr = socket.addr();
                drop(socket);
                let refused =
                    TcpStream::connect(addr, Duration::from_secs(5)).await.expect_err("nobody listens");
                assert!(
                    matches!(refused, ConnectError::Io(e) if e.kind() == io::ErrorKind::ConnectionRefused)
                );
            })
            .expect("the loop ran");
        });
    }

    #[test]
    fn timers_fire_in_order_and_not_early() {
        on_each_driver(|choice| {
            run(choice, &Epoch::start(), |_kind| async {
                let start = crate::clock::now();
                for ms in [3u64, 1, 20] {
                    let before = crate::clock::now();
                    timer::sleep(Duration::from_millis(ms)).await;
                    assert!(crate::clock::now() - before >= Duration::from_millis(ms));
                }
                assert!(crate::clock::now() - start < Duration::from_secs(5));
            })
            .expect("the loop ran");
        });
    }

    #[test]
    fn a_sharp_wait_is_finer_than_a_tick_and_not_early() {
        run(DriverChoice::Auto, &Epoch::start(), |_kind| async {
            let mut shortest = Duration::MAX;
            for _ in 0..50 {
                let before = crate::clock::now();
                let at = before + Duration::from_micros(100);
                std::future::poll_fn(|cx| timer::poll_sharp(cx, at)).await;
                let waited = crate::clock::now() - before;
                assert!(waited >= Duration::from_micros(100));
                shortest = shortest.min(waited);
            }
            assert!(
                shortest < Duration::from_millis(1),
                "{shortest:?}: the wheel's tick, not the wait's time"
            );
        })
        .expect("the loop ran");
    }

    #[test]
    fn turn_end_runs_after_everything_that_is_ready() {
        run(DriverChoice::Auto, &Epoch::start(), |_kind| async {
            let order = Rc::new(RefCell::new(Vec::new()));
            let late = Rc::clone(&order);
            spawn(async move {
                turn_end().await;
                late.borrow_mut().push("flush");
            });
            for _ in 0..3 {
                let work = Rc::clone(&order);
                spawn(async move {
                    yield_now().await;
                    work.borrow_mut().push("work");
                });
            }
            timer::sleep(Duration::from_millis(1)).await;
            assert_eq!(*order.borrow(), ["work", "work", "work", "flush"]);
        })
        .expect("the loop ran");
    }

    #[test]
    fn a_gate_lets_few_pass_in_a_turn_and_all_in_order() {
        run(DriverChoice::Auto, &Epoch::start(), |_kind| async {
            let gate = crate::sync::TurnGate::new(3);
            let passed = Rc::new(RefCell::new(Vec::new()));
            for number in 0..20 {
                let (gate, passed) = (gate.clone(), Rc::clone(&passed));
                spawn(async move {
                    let mut place = None;
                    std::future::poll_fn(|cx| gate.poll_enter(cx, &mut place)).await;
                    passed.borrow_mut().push((exec::turn(), number));
                });
            }
            let until = crate::clock::now() + Duration::from_secs(5);
            while passed.borrow().len() < 20 && crate::clock::now() < until {
                crate::next_turn().await;
            }
            let passed = passed.borrow();
            let numbers: Vec<i32> = passed.iter().map(|(_, number)| *number).collect();
            assert_eq!(numbers, (0..20).collect::<Vec<_>>());
            for turn in passed.chunk_by(|one, other| one.0 == other.0) {
                assert!(turn.len() <= 3, "{turn:?}");
            }
        })
        .expect("the loop ran");
    }

    #[test]
    fn who_passes_a_gate_may_spend_more_and_goes_to_the_end_of_the_line() {
        run(DriverChoice::Auto, &Epoch::start(), |_kind| async {
            let gate = crate::sync::TurnGate::new(8);
            let passed = Rc::new(RefCell::new(Vec::new()));
            for number in 0..6 {
                let (gate, passed) = (gate.clone(), Rc::clone(&passed));
                spawn(async move {
                    for _ in 0..4 {
                        let mut place = None;
                        std::future::poll_fn(|cx| gate.poll_enter(cx, &mut place)).await;
                        gate.spend(4);
                        passed.borrow_mut().push((exec::turn(), number));
                    }
                });
            }
            let until = crate::clock::now() + Duration::from_secs(5);
            while passed.borrow().len() < 24 && crate::clock::now() < until {
                crate::next_turn().await;
            }
            let passed = passed.borrow();
            assert_eq!(passed.len(), 24);
            for turn in passed.chunk_by(|one, other| one.0 == other.0) {
                assert!(turn.len() <= 2, "five and five is more than eight: {turn:?}");
            }
            // While nobody stands in line the first one passes twice; then nobody before everybody else in the line has.
            for five in passed[2..].windows(5) {
                let mut numbers: Vec<i32> = five.iter().map(|(_, number)| *number).collect();
                numbers.sort_unstable();
                numbers.dedup();
                assert_eq!(numbers.len(), 5, "{passed:?}");
            }
        })
        .expect("the loop ran");
    }

    #[test]
    fn free_bytes_are_spent_by_all_and_come_back_with_the_next_turn() {
        run(DriverChoice::Auto, &Epoch::start(), |_kind| async {
            use crate::sync::{free_bytes, spend_free_bytes};
            crate::next_turn().await;
            let whole = free_bytes();
            spend_free_bytes(whole / 2);
            yield_now().await;
            assert_eq!(free_bytes(), whole - whole / 2, "still the same turn");
            spend_free_bytes(usize::MAX);
            assert_eq!(free_bytes(), 0);
            crate::next_turn().await;
            assert_eq!(free_bytes(), whole);
        })
        .expect("the loop ran");
    }

    #[test]
    fn a_panic_ends_its_task_and_is_counted() {
        run(DriverChoice::Auto, &Epoch::start(), |_kind| async {
            let before = exec::panics();
            spawn(async { panic!("expected by the test") });
            yield_now().await;
            yield_now().await;
            assert_eq!(exec::panics(), before + 1);
        })
        .expect("the loop ran");
    }

    #[test]
    fn tasks_are_dropped_with_the_shard() {
        let held = Rc::new(());
        let inner = Rc::clone(&held);
        run(DriverChoice::Auto, &Epoch::start(), |_kind| async move {
            spawn(async move {
                let _kept = inner;
                std::future::pending::<()>().await;
            });
            yield_now().await;
        })
        .expect("the loop ran");
        assert_eq!(Rc::strong_count(&held), 1);
    }

    #[test]
    fn a_mailbox_wakes_the_shard_from_another_thread() {
        on_each_driver(|choice| {
            let (sender, mailbox) = crate::mailbox::mailbox::<u32>(4).expect("mailbox");
            let thread = std::thread::spawn(move || {
                for n in 0..1000u32 {
                    let mut message = n;
                    while let Err(crate::mailbox::SendError::Full(back)) = sender.send(message) {
                        message = back;
                        std::thread::yield_now();
                    }
                }
            });
            run(choice, &Epoch::start(), |_kind| async move {
                let inbox = mailbox.open().expect("open");
                for n in 0..1000u32 {
                    assert_eq!(inbox.receive().await, Some(n));
                }
                assert_eq!(inbox.receive().await, None, "the sender is gone");
            })
            .expect("the loop ran");
            thread.join().expect("the sender ended");
        });
    }
}
