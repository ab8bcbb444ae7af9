//! A byte pump on one shard: the floor of what a proxy on this reactor can cost, without any HTTP.
//!
//! `pump LISTEN BACKEND[,BACKEND…] [ring|epoll]` copies bytes both ways between each client and a backend
//! connection of its own. Compare its CPU per request with the proxy's and with other byte pumps.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use core_runtime::buf::Buf;
use core_runtime::clock::Epoch;
use core_runtime::net::{BindOptions, ListeningSocket, TcpStream};
use core_runtime::shard::{DriverChoice, run};
use core_runtime::spawn;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, listen, backends, rest @ ..] = arguments.as_slice() else {
        return Err("usage: pump LISTEN BACKEND[,BACKEND…] [ring|epoll]".into());
    };
    let listen: SocketAddr = listen.parse()?;
    let backends: Vec<SocketAddr> = backends.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let choice = if rest.iter().any(|a| a == "epoll") { DriverChoice::Epoll } else { DriverChoice::Ring };
    let socket = ListeningSocket::bind(listen, BindOptions::default())?;
    run(choice, &Epoch::start(), |_kind| async move {
        let listener = match socket.open() {
            Ok(listener) => listener,
            Err(_refused) => return,
        };
        let mut next = 0;
        while let Ok(accepted) = listener.accept().await {
            let backend = backends[next % backends.len()];
            next += 1;
            spawn(async move {
                if let Ok(client) = TcpStream::from_fd(accepted.fd)
                    && let Ok(server) = TcpStream::connect(backend, Duration::from_secs(5)).await
                {
                    let (client, server) = (Rc::new(client), Rc::new(server));
                    spawn(copy(Rc::clone(&server), Rc::clone(&client)));
                    copy(client, server).await;
                }
            });
        }
    })?;
    Ok(())
}

async fn copy(from: Rc<TcpStream>, to: Rc<TcpStream>) {
    loop {
        let mut buf = match read(&from).await {
            Ok(buf) if !buf.is_empty() => buf,
            Ok(_) | Err(_) => break,
        };
        while !buf.is_empty() {
            match to.try_write(buf.filled()) {
                Ok(sent) => buf.consume(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|cx| to.poll_writable(cx)).await;
                }
                Err(_gone) => return,
            }
        }
    }
    // The other direction finds out by itself when the peer is gone.
    match to.shutdown_write() {
        Ok(()) | Err(_) => {}
    }
}

/// Waits for bytes, takes a buffer only then.
async fn read(from: &TcpStream) -> io::Result<Buf> {
    poll_fn(|cx| {
        loop {
            ready!(from.poll_readable(cx));
            let mut buf = Buf::try_take().ok_or(io::ErrorKind::OutOfMemory)?;
            match from.try_read_buf(&mut buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(_) => return Poll::Ready(Ok(buf)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    })
    .await
}
