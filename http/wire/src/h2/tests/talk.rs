//! A client and a server, both ours, over bytes that are cut anywhere.

use super::*;
use crate::fields::FieldId;
use crate::h2::connection::Closing;
use crate::head::BodyLength;

struct Pair {
    client: Connection<u32>,
    server: Connection<u32>,
    client_log: Log,
    server_log: Log,
    /// Bytes that pass at once.
    step: usize,
}

impl Pair {
    fn new(client: Config, server: Config, step: usize) -> Self {
        let mut pair = Self {
            client: Connection::new(Role::Client, Config { budgets: None, ..client }),
            server: Connection::new(Role::Server, server),
            client_log: Log::default(),
            server_log: Log::default(),
            step,
        };
        pair.pass();
        assert!(pair.client.is_settled() && pair.server.is_settled());
        pair
    }

    /// Passes bytes both ways until both ends are silent.
    fn pass(&mut self) {
        let Self { client, server, client_log, server_log, step } = self;
        while !client.output().is_empty() || !server.output().is_empty() {
            carry(client, client_log, server, server_log, *step);
            carry(server, server_log, client, client_log, *step);
        }
    }

    fn open(&mut self, head: &RequestHead, body: BodyLength) -> StreamKey {
        let id = self.client.next_own_stream;
        self.client.send_request(head, body, false, Scheme::Https, id).expect("open")
    }
}

fn carry(
    from: &mut Connection<u32>,
    from_log: &mut Log,
    to: &mut Connection<u32>,
    to_log: &mut Log,
    step: usize,
) {
    let bytes = from.output().get(..step.min(from.output().len())).unwrap_or(&[]).to_vec();
    if !bytes.is_empty() {
        from.sent(bytes.len(), from_log);
        to.receive(&bytes, NOW, to_log).expect("two ends that keep to the rules");
    }
}

fn request() -> RequestHead {
    let mut head = RequestHead::default();
    head.set_method(b"POST").expect("a token");
    head.set_authority(b"a.example").expect("short");
    head.set_path(b"/upload").expect("short");
    head.fields.push(FieldId::UserAgent, b"test").expect("a value");
    head
}

fn response(status: u16) -> ResponseHead {
    let mut head = ResponseHead::default();
    head.status = status;
    head.fields.push(FieldId::Server, b"test").expect("a value");
    head
}

fn trailers() -> Fields {
    let mut fields = Fields::new();
    fields.push(FieldId::GrpcStatus, b"0").expect("a value");
    fields
}

#[test]
fn a_whole_exchange_whatever_the_cuts() {
    for step in [1, 2, 3, 8, 9, 10, 100, 100_000] {
        let mut pair = Pair::new(config(), config(), step);
        for round in 0..3 {
            let id = 2 * round + 1;
            let up = pair.open(&request(), BodyLength::Streamed);
            pair.client.send_data(up, b"some ", false).expect("room");
            pair.client.send_data(up, b"bytes", false).expect("room");
            pair.client.send_trailers(up, &trailers()).expect("open");
            pair.pass();
            assert_eq!(
                pair.server_log.take(),
                [
                    format!("{id} request POST a.example/upload Streamed"),
                    format!("{id} data some bytes"),
                    format!("{id} end grpc-status=0")
                ],
                "in steps of {step}"
            );
            let down = pair.server_log.keys.pop().expect("a key");
            pair.server.send_response(down, &response(103), None, false).expect("open");
            pair.server.send_response(down, &response(200), Some(5), false).expect("open");
            pair.server.send_data(down, b"hello", true).expect("room");
            pair.pass();
            assert_eq!(
                pair.client_log.take(),
                [
                    format!("{id} response 103 Empty server=test"),
                    format!("{id} response 200 Exact(5) server=test"),
                    format!("{id} data hello"),
                    format!("{id} end")
                ]
            );
            pair.client.release(up, 5, NOW);
            pair.server.release(down, 10, NOW);
            assert_eq!((pair.client.streams(), pair.server.streams()), (0, 0));
            assert!(pair.client.output().is_empty(), "a whole exchange leaves nothing to say");
        }
    }
}

#[test]
fn long_heads_pass_in_continuations() {
    let roomy = Config {
        head: HeadLimits { list_bytes_max: 200_000, fields_max: 100, target_bytes_max: 8192 },
        ..config()
    };
    let mut pair = Pair::new(roomy, roomy, 1000);
    let mut head = request();
    for n in 0..20 {
        head.fields.push_name(format!("x-{n}").as_bytes(), &[b'v'; 5000]).expect("a value");
    }
    pair.open(&head, BodyLength::Empty);
    pair.pass();
    assert_eq!(pair.server_log.take(), ["1 request POST a.example/upload Empty end"]);
    assert_eq!(listing(&pair.server_log.heads[0].fields), listing(&head.fields));
}

#[test]
fn a_sender_waits_for_credit_and_is_told_of_it() {
    let small = Config { stream_window_bytes: 70_000, connection_window_bytes: 100_000, ..config() };
    let mut pair = Pair::new(small, small, 5000);
    let mut sent = [0usize; 2];
    let up = [pair.open(&request(), BodyLength::Streamed), pair.open(&request(), BodyLength::Streamed)];
    // The first stream fills its own window, the second what is left of the connection's.
    for (nth, key) in up.iter().enumerate() {
        loop {
            let room = pair.client.room(*key).expect("open");
            if room == 0 {
                break;
            }
            pair.client.send_data(*key, &vec![b'x'; room], false).expect("room");
            sent[nth] += room;
            pair.pass();
        }
    }
    assert_eq!(sent, [70_000, 30_000]);
    let down: Vec<StreamKey> = pair.server_log.keys.clone();
    // Less than half a window is not told.
    pair.server.consume(down[1], 20_000);
    pair.pass();
    assert_eq!(pair.client_log.take(), Vec::<String>::new());
    // The connection's credit comes back, and the one in line for it hears of it; the other waits for its own.
    pair.server.consume(down[0], 30_000);
    pair.pass();
    assert_eq!(pair.client_log.take(), ["3 room"]);
    assert_eq!(pair.client.room(up[1]).expect("open"), 40_000);
    assert_eq!(pair.client.room(up[0]).expect("open"), 0);
    pair.server.consume(down[0], 5_000);
    pair.pass();
    assert_eq!(pair.client_log.take(), ["1 room"]);
    assert_eq!(pair.client.room(up[0]).expect("open"), 35_000);
    // What is let go unread comes back to the connection.
    pair.server.release(down[0], 35_000, NOW);
    pair.server.release(down[1], 10_000, NOW);
    pair.pass();
    assert_eq!(pair.client_log.take(), ["1 failed Reset(CANCEL(8))", "3 failed Reset(CANCEL(8))"]);
    assert!(pair.client.room(up[0]).is_err() && pair.client.send_data(up[0], b"x", true).is_err());
}

#[test]
fn who_waits_for_the_connection_and_goes_leaves_the_line() {
    let mut pair = Pair::new(config(), Config { connection_window_bytes: 65_535, ..config() }, 100_000);
    let first = pair.open(&request(), BodyLength::Streamed);
    pair.client.send_data(first, &[b'x'; 65_535], false).expect("room");
    for _ in 0..100 {
        let key = pair.open(&request(), BodyLength::Streamed);
        assert_eq!(pair.client.room(key), Ok(0));
        pair.client.release(key, 0, NOW);
    }
    assert_eq!(pair.client.line.len(), 0);
}

#[test]
fn a_smaller_window_in_the_middle_is_made_up_for() {
    let mut pair = Pair::new(config(), config(), 5000);
    let key = pair.open(&request(), BodyLength::Streamed);
    pair.client.send_data(key, &[b'x'; 50_000], false).expect("room");
    pair.pass();
    // The server's SETTINGS are overtaken by smaller ones: the window goes below nothing (RFC 9113 §6.9.2).
    let mut log = Log::default();
    pair.client.receive(&raw(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 100]), NOW, &mut log).expect("good");
    assert_eq!(pair.client.room(key), Ok(0));
    pair.client
        .receive(&raw(kind::WINDOW_UPDATE, 0, 1, &49_900u32.to_be_bytes()), NOW, &mut log)
        .expect("good");
    assert_eq!((pair.client.room(key), log.take().len()), (Ok(0), 0));
    pair.client.receive(&raw(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 7]), NOW, &mut log).expect("good");
    assert_eq!((pair.client.room(key), log.take()), (Ok(7), vec!["1 room".to_owned()]));
}

#[test]
fn going_away_is_announced_and_then_said() {
    let mut pair = Pair::new(config(), config(), 5000);
    let first = pair.open(&request(), BodyLength::Streamed);
    pair.pass();
    pair.server.begin_shutdown();
    assert_eq!(pair.server.closing, Closing::Announced);
    // A request that was on its way is served.
    pair.open(&request(), BodyLength::Empty);
    pair.pass();
    assert_eq!(pair.server_log.take().len(), 2);
    // The answer to the PING says that the client knows.
    assert_eq!(pair.server.closing, Closing::After(3));
    assert!(!pair.client.may_open() && !pair.server.is_over());
    assert_eq!(
        pair.client.send_request(&request(), BodyLength::Empty, false, Scheme::Https, 5),
        Err(SendError::GoingAway)
    );
    // One that comes all the same is not looked at, and its frames are no error.
    let late = [headers(5, false, &POST), raw(kind::DATA, 0, 5, b"x")].concat();
    pair.server.receive(&late, NOW, &mut pair.server_log).expect("quiet");
    assert_eq!(pair.server_log.take(), Vec::<String>::new());
    pair.client.send_data(first, b"", true).expect("streams go on");
    pair.pass();
    let keys = std::mem::take(&mut pair.server_log.keys);
    for key in keys {
        pair.server.send_response(key, &response(200), None, true).expect("open");
        pair.server.release(key, 0, NOW);
    }
    pair.pass();
    assert!(pair.server.is_over());
    let heard = pair.client_log.take();
    assert_eq!(heard.iter().filter(|line| line.contains("response 200")).count(), 2, "{heard:?}");
}

#[test]
fn streams_beyond_a_goaway_may_be_sent_again() {
    let mut pair = Pair::new(config(), config(), 5000);
    for _ in 0..3 {
        pair.open(&request(), BodyLength::Streamed);
    }
    let goaway = raw(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]);
    pair.client.receive(&goaway, NOW, &mut pair.client_log).expect("good");
    assert_eq!(pair.client_log.take(), ["5 failed GoneAway"]);
    pair.client.fail_all(StreamFault::Lost, &mut pair.client_log);
    assert_eq!(pair.client_log.take(), ["1 failed Lost", "3 failed Lost"]);
}

#[test]
fn an_early_response_lets_the_rest_of_the_request_go() {
    let mut pair = Pair::new(config(), config(), 5000);
    let up = pair.open(&request(), BodyLength::Streamed);
    pair.pass();
    let down = pair.server_log.keys[0];
    pair.server.send_response(down, &response(413), None, true).expect("open");
    pair.server.release(down, 0, NOW);
    pair.pass();
    // NO_ERROR: the response is whole (RFC 9113 §8.1).
    assert_eq!(pair.client_log.take(), ["1 response 413 Empty server=test", "1 end"]);
    assert!(pair.client.send_data(up, b"x", true).is_err());
    pair.client.release(up, 0, NOW);
    assert_eq!(pair.client.streams(), 0);
}

#[test]
fn a_sign_of_life() {
    let mut pair = Pair::new(config(), config(), 5000);
    pair.client.ping();
    assert!(!pair.client.has_pong());
    pair.pass();
    assert!(pair.client.has_pong());
}

#[test]
fn a_connection_without_streams_holds_little() {
    let mut pair = Pair::new(config(), config(), 100_000);
    let up = pair.open(&request(), BodyLength::Streamed);
    pair.client.send_data(up, &[0; 60_000], true).expect("room");
    pair.pass();
    let down = pair.server_log.keys[0];
    pair.server.send_response(down, &response(200), None, true).expect("open");
    pair.pass();
    pair.server.release(down, 60_000, NOW);
    pair.client.release(up, 0, NOW);
    pair.pass();
    assert!(pair.client.output.capacity() > 2 * 1024);
    pair.client.release_buffers();
    assert!(pair.client.output.capacity() <= 2 * 1024);
    pair.server.release_memory(NOW);
    assert_eq!(pair.server.output.capacity(), 0);
    // It goes on as before.
    pair.open(&request(), BodyLength::Empty);
    pair.pass();
    assert_eq!(
        pair.server_log.take().last().map(String::as_str),
        Some("3 request POST a.example/upload Empty end")
    );
}

/// A small generator (splitmix64), so that a seed replays.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(bound).expect("fits")).expect("fits")
    }
}

/// Many streams at once, each with a body in both directions, through small windows: all of it arrives, in order, and
/// at the end no credit is missing.
#[test]
fn everything_arrives_and_no_credit_is_lost() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let mut config = || Config {
            stream_window_bytes: u32::try_from(20_000 + random.below(100_000)).expect("fits"),
            connection_window_bytes: u32::try_from(66_000 + random.below(50_000)).expect("fits"),
            ..config()
        };
        let mut pair = Pair::new(config(), config(), 30_000);
        pair.step = 1 + random.below(30_000);
        let bodies: Vec<usize> = (0..8).map(|_| random.below(200_000)).collect();
        let up: Vec<StreamKey> = bodies.iter().map(|_| pair.open(&request(), BodyLength::Streamed)).collect();
        pair.pass();
        let down = std::mem::take(&mut pair.server_log.keys);
        for key in &down {
            pair.server.send_response(*key, &response(200), None, false).expect("open");
        }
        let (mut sent, mut seen) = ([[0usize; 8]; 2], [[0usize; 8]; 2]);
        for round in 0.. {
            assert!(round < 100_000, "seed {seed}: it does not come to an end");
            let nth = random.below(8);
            for (way, end, key) in [(0, &mut pair.client, up[nth]), (1, &mut pair.server, down[nth])] {
                let left = bodies[nth] - sent[way][nth];
                if left > 0 {
                    let count = end.room(key).expect("open").min(left).min(1 + random.below(40_000));
                    let is_end = count == left;
                    if count > 0 {
                        end.send_data(key, &vec![b'x'; count], is_end).expect("room");
                    }
                    sent[way][nth] += count;
                }
            }
            pair.pass();
            for (way, log) in [(0, &mut pair.server_log), (1, &mut pair.client_log)] {
                for line in log.take() {
                    if let Some((id, text)) = line.split_once(" data ") {
                        let id: usize = id.parse().expect("a number");
                        seen[way][(id - 1) / 2] += text.len();
                        let (end, key) = if way == 0 {
                            (&mut pair.server, down[(id - 1) / 2])
                        } else {
                            (&mut pair.client, up[(id - 1) / 2])
                        };
                        end.consume(key, text.len());
                    }
                }
            }
            pair.pass();
            if sent.iter().all(|way| way.as_slice() == bodies.as_slice()) && seen == sent {
                break;
            }
        }
        for (up, down) in up.iter().zip(&down) {
            pair.client.release(*up, 0, NOW);
            pair.server.release(*down, 0, NOW);
        }
        pair.pass();
        for (end, peer) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            assert_eq!(end.streams(), 0, "seed {seed}");
            assert_eq!(
                end.send_window + i64::from(peer.taken),
                i64::from(peer.config.connection_window_bytes),
                "seed {seed}"
            );
        }
    }
}
