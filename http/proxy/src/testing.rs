//! Helps unit tests of code that needs real sockets: a shard to run on, and connected pairs.

use std::future::Future;
use std::io;
use std::time::Duration;

use core_runtime::buf::Buf;
use core_runtime::clock::Epoch;
use core_runtime::net::{BindOptions, ListeningSocket, TcpStream};
use core_runtime::shard::{DriverChoice, run};
use http_wire::h1::HeadLimits;

use crate::side::H1Side;
use crate::transport::Transport;

/// Runs a test on a reactor of its own; a panic in it fails the test.
pub(crate) fn on_shard<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F) {
    let failed = std::rc::Rc::new(std::cell::Cell::new(true));
    let flag = std::rc::Rc::clone(&failed);
    run(DriverChoice::Auto, &Epoch::start(), |_kind| {
        let test = test();
        async move {
            let guarded = GuardedTest(Box::pin(test));
            flag.set(!guarded.await);
        }
    })
    .expect("the loop ran");
    assert!(!failed.get(), "the test panicked; its message stands above");
}

/// Turns a panic of a test into `false`, so that the loop ends.
struct GuardedTest(std::pin::Pin<Box<dyn Future<Output = ()>>>);

impl Future for GuardedTest {
    type Output = bool;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<bool> {
        let future = self.0.as_mut();
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| future.poll(cx))) {
            Ok(poll) => poll.map(|()| true),
            Err(_printed) => std::task::Poll::Ready(false),
        }
    }
}

/// Both ends of one TCP connection.
pub(crate) async fn pair() -> (TcpStream, TcpStream) {
    let address = "127.0.0.1:0".parse().expect("an address");
    let socket = ListeningSocket::bind(address, BindOptions::default()).expect("bind");
    let address = socket.addr();
    let listener = socket.open().expect("open");
    let there = TcpStream::connect(address, Duration::from_secs(5)).await.expect("connect");
    let accepted = listener.accept().await.expect("accept");
    (TcpStream::from_fd(accepted.fd).expect("register"), there)
}

/// An h1 side, and the raw other end of its connection.
pub(crate) async fn h1_side() -> (Box<H1Side>, TcpStream) {
    let (here, there) = pair().await;
    (H1Side::new(Transport::Plain(here), HeadLimits::default()), there)
}

/// Writes everything.
pub(crate) async fn write_all(stream: &TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::future::poll_fn(|cx| stream.poll_writable(cx)).await;
            }
            Err(error) => panic!("write: {error}"),
        }
    }
}

/// Reads until `count` bytes have come or the stream has ended.
pub(crate) async fn read_up_to(stream: &TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        std::future::poll_fn(|cx| stream.poll_readable(cx)).await;
        let mut buf = Buf::try_take().expect("a buffer");
        match stream.try_read_buf(&mut buf) {
            Ok(0) => break,
            Ok(_) => bytes.extend_from_slice(buf.filled()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("read: {error}"),
        }
    }
    bytes
}

/// The pause of a scripted peer between two actions: part of a scenario, never a wait for somebody else.
pub(crate) async fn paced(pause: Duration) {
    let deadline = core_runtime::timer::Deadline::new();
    deadline.set_after(pause);
    std::future::poll_fn(|cx| deadline.poll_expired(cx)).await;
}
