//! Floods, budgets in time, and what traffic pays for (C20, C26).

use super::*;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const PRIORITY_UPDATE: u8 = 16;
const NOW: Duration = Duration::from_secs(1000);

fn frame(kind: u8, flags: u8, stream_id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("test payloads are short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream_id.to_be_bytes(), payload].concat()
}

fn small_budgets() -> FrameBudgets {
    let window = Duration::from_secs(10);
    FrameBudgets {
        resets: Budget { frames: 50, window, burst: 100 },
        control_frames: Budget { frames: 50, window, burst: 100 },
        small_data_frames: Budget { frames: 50, window, burst: 100 },
        continuations_in_row_max: 4,
    }
}

/// How many copies of `unit` pass at one instant before the flood, of at most `copies_max`.
fn copies_passed(unit: &[u8], copies_max: usize, expected: Flood) -> usize {
    let mut meter = FrameMeter::new(&small_budgets());
    for copy in 0..copies_max {
        if let Err(flood) = meter.feed(unit, NOW) {
            assert_eq!(flood, expected);
            assert_eq!(meter.feed(b"", NOW), Err(flood), "a flood is not forgotten");
            assert_eq!(meter.note_reset_sent(NOW), Err(flood));
            return copy;
        }
    }
    copies_max
}

#[test]
fn floods_end_at_the_burst() {
    let empty_data = frame(DATA, 0, 1, b"");
    let padded_to_nothing = frame(DATA, FLAG_PADDED, 1, &[[99].as_slice(), &[0; 99]].concat());
    let cases = [
        (frame(RST_STREAM, 0, 1, &[0; 4]), Flood::Resets, 100),
        (frame(PING, 0, 0, &[0; 8]), Flood::ControlFrames, 100),
        (frame(SETTINGS, 0, 0, b""), Flood::ControlFrames, 100),
        (frame(SETTINGS, 1, 0, b""), Flood::ControlFrames, 100),
        (frame(PRIORITY, 0, 3, &[0; 5]), Flood::ControlFrames, 100),
        (frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), Flood::ControlFrames, 100),
        (frame(0x77, 0, 0, b"extension"), Flood::ControlFrames, 100),
        (frame(DATA, 0, 1, b"x"), Flood::SmallDataFrames, 100),
        (frame(DATA, 0, 1, &[0; 63]), Flood::SmallDataFrames, 100),
        (empty_data, Flood::SmallDataFrames, 10),
        (padded_to_nothing, Flood::SmallDataFrames, 10),
        (frame(CONTINUATION, 0, 1, b"x"), Flood::Continuations, 4),
        // Frames in between do not hide the row of another kind.
        ([frame(RST_STREAM, 0, 1, &[0; 4]), frame(DATA, 0, 1, &[0; 64])].concat(), Flood::Resets, 100),
    ];
    for (unit, flood, passed) in &cases {
        assert_eq!(copies_passed(unit, 1000, *flood), *passed, "{flood:?} {unit:?}");
    }
}

#[test]
fn honest_traffic_passes() {
    let headers = frame(HEADERS, 0x04, 1, &[0; 30]);
    let cases = [
        frame(DATA, 0, 1, &[0; 64]),
        frame(DATA, FLAG_END_STREAM, 1, b""),
        frame(DATA, FLAG_END_STREAM, 1, b"x"),
        headers.clone(),
        [headers, vec![frame(CONTINUATION, 0, 1, b"x"); 4].concat()].concat(),
    ];
    for unit in &cases {
        assert_eq!(copies_passed(unit, 5000, Flood::Continuations), 5000, "{unit:?}");
    }
}

#[test]
fn resets_of_both_sides_share_one_budget() {
    let reset = frame(RST_STREAM, 0, 1, &[0; 4]);
    let mut meter = FrameMeter::new(&small_budgets());
    for _ in 0..50 {
        assert_eq!(meter.feed(&reset, NOW), Ok(()));
        assert_eq!(meter.note_reset_sent(NOW), Ok(()));
    }
    assert_eq!(meter.note_reset_sent(NOW), Err(Flood::Resets));
    assert_eq!((meter.counts().resets_received, meter.counts().resets_sent), (50, 51));
}

#[test]
fn a_browser_may_leave_a_page_every_few_seconds() {
    let mut meter = FrameMeter::new(&FrameBudgets::default());
    let hundred = vec![frame(RST_STREAM, 0, 1, &[0; 4]); 100].concat();
    for page in 0..100 {
        assert_eq!(meter.feed(&hundred, NOW + Duration::from_secs(4 * page)), Ok(()), "page {page}");
    }
    let storm = [frame(HEADERS, 0x05, 1, &[0; 20]), frame(RST_STREAM, 0, 1, &[0; 4])].concat();
    let later = NOW + Duration::from_secs(1000);
    assert_eq!(meter.feed(&storm.repeat(10_000), later), Err(Flood::Resets));
    assert!(meter.counts().resets_received < 10_500);
}

/// However the frames are timed, no window sees more than `at_most` allows.
#[test]
fn a_window_never_holds_more_than_its_maximum() {
    let window = Duration::from_secs(10);
    for frames_max in [1, 2, 7, 100, 333] {
        for gap_ms in [0, 1, 30, 100, 9_999] {
            let budget = Budget::at_most(frames_max, window);
            let mut purse = Purse::new(budget);
            let mut admitted: Vec<Duration> = Vec::new();
            for attempt in 0..2_000u64 {
                let now = NOW + Duration::from_millis(attempt * gap_ms);
                let before = purse;
                match purse.spend(1, now) {
                    Ok(()) => admitted.push(now),
                    // A connection ends here; the test goes on as if the frame had not been.
                    Err(Overspent) => purse = before,
                }
            }
            for (index, start) in admitted.iter().enumerate() {
                let inside = admitted[index..].iter().take_while(|at| **at < *start + window).count();
                assert!(inside <= frames_max as usize, "{inside} of {frames_max} with a gap of {gap_ms} ms");
            }
            assert!(admitted.len() >= frames_max.div_ceil(2) as usize);
        }
    }
}

#[test]
fn budgets_refill_with_time() {
    let ping = frame(PING, 0, 0, &[0; 8]);
    let mut meter = FrameMeter::new(&small_budgets());
    assert_eq!(meter.feed(&ping.repeat(100), NOW), Ok(()));
    for second in 1..100 {
        let now = NOW + Duration::from_secs(second);
        assert_eq!(meter.feed(&ping.repeat(5), now), Ok(()), "second {second}");
    }
    assert_eq!(meter.feed(&ping.repeat(6), NOW + Duration::from_secs(100)), Err(Flood::ControlFrames));
}

#[test]
fn traffic_pays_for_its_own_control_frames() {
    let update = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0x40, 0]);
    let ping = frame(PING, 0, 0, &[0; 8]);
    // A long download: two updates and a ping for each DATA frame.
    let mut meter = FrameMeter::new(&small_budgets());
    for _ in 0..10_000 {
        meter.note_data_sent(16_384);
        assert_eq!(meter.feed(&[&update[..], &update, &ping].concat(), NOW), Ok(()));
    }
    // Many small requests, each opened with an update and reprioritised.
    let mut meter = FrameMeter::new(&small_budgets());
    for request in 0..10_000 {
        let id = 2 * request + 1;
        let frames = [
            frame(HEADERS, 0x05, id, &[0; 20]),
            frame(WINDOW_UPDATE, 0, id, &[0, 0, 0x40, 0]),
            frame(PRIORITY_UPDATE, 0, 0, &[0; 8]),
        ];
        assert_eq!(meter.feed(&frames.concat(), NOW), Ok(()));
    }
    assert_eq!(meter.counts().streams_opened, 10_000);
}

#[test]
fn what_traffic_does_not_pay_for() {
    // A window opened byte by byte (CVE-2019-9511).
    let dribble = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    let mut meter = FrameMeter::new(&small_budgets());
    let passed = (0..1000).take_while(|_| {
        meter.note_data_sent(1);
        meter.feed(&dribble, NOW).is_ok()
    });
    assert_eq!(passed.count(), 100);
    // Settings, whatever was sent; and what a long download saved up.
    for (kind, passed_max) in [(SETTINGS, 100), (PING, 100 + 256), (WINDOW_UPDATE, 100 + 16_384)] {
        let mut meter = FrameMeter::new(&small_budgets());
        for _ in 0..100_000 {
            meter.note_data_sent(16_384);
        }
        let unit = frame(kind, 0, 0, &[0; 8]);
        let passed = (0..50_000).take_while(|_| meter.feed(&unit, NOW).is_ok()).count();
        assert_eq!(passed, passed_max, "{kind}");
    }
    // A trailing HEADERS frame opens nothing.
    let mut meter = FrameMeter::new(&small_budgets());
    for _ in 0..200 {
        assert_eq!(meter.feed(&frame(HEADERS, 0x05, 1, b""), NOW), Ok(()));
    }
    assert_eq!((meter.counts().streams_opened, meter.counts().headers_frames), (1, 200));
    assert_eq!(meter.feed(&dribble.repeat(105), NOW), Err(Flood::ControlFrames));
}

#[test]
fn control_chatter_is_no_activity() {
    let mut meter = FrameMeter::at_preface(&FrameBudgets::default());
    assert_eq!(meter.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", NOW), Ok(()));
    let before = *meter.counts();
    assert_eq!(before, FrameCounts::default());
    for kind in [SETTINGS, PING, PRIORITY, WINDOW_UPDATE, 0xff] {
        assert_eq!(meter.feed(&frame(kind, 0, 0, &[0; 8]), NOW), Ok(()));
    }
    let after = meter.counts();
    assert_eq!(
        (after.streams_opened, after.headers_frames, after.data_frames, after.data_bytes),
        (0, 0, 0, 0)
    );
    assert_eq!(after.control_frames, 5);
}

#[test]
fn reads_may_be_cut_anywhere() {
    let stream = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[0; 12]),
        frame(HEADERS, 0x04, 1, &[1; 40]),
        frame(DATA, 0, 1, &[3; 70]),
        frame(DATA, FLAG_PADDED, 1, &[[10].as_slice(), &[3; 80]].concat()),
        frame(DATA, FLAG_PADDED, 1, b""),
        frame(DATA, FLAG_PADDED, 1, &[0]),
        frame(DATA, FLAG_PADDED, 1, &[200, 1, 2]),
        frame(RST_STREAM, 0, 0x8000_0001, &[0; 4]),
        frame(HEADERS, 0x05, 3, &[1; 300]),
        frame(PING, 0, 0, &[3; 8]),
    ]
    .concat();
    let whole = {
        let mut meter = FrameMeter::at_preface(&small_budgets());
        assert_eq!(meter.feed(&stream, NOW), Ok(()));
        *meter.counts()
    };
    assert_eq!(
        whole,
        FrameCounts {
            streams_opened: 2,
            headers_frames: 2,
            data_frames: 5,
            data_bytes: 70 + 70,
            resets_received: 1,
            resets_sent: 0,
            control_frames: 2,
        }
    );
    for size in 1..stream.len() {
        let mut meter = FrameMeter::at_preface(&small_budgets());
        for piece in stream.chunks(size) {
            assert_eq!(meter.feed(piece, NOW), Ok(()));
        }
        assert_eq!(*meter.counts(), whole, "pieces of {size}");
    }
}
