//! Floods, budgets in time, and what traffic pays for (C20, C26).

use super::super::frame::kind::{
    CONTINUATION, DATA, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use super::*;

const PRIORITY_UPDATE: u8 = 16;
const NOW: Duration = Duration::from_secs(1000);

fn frame(kind: u8, stream_id: u32, content_bytes: usize) -> Frame {
    Frame { kind, is_stream_end: false, stream_id, content_bytes }
}

fn last(frame: Frame) -> Frame {
    Frame { is_stream_end: true, ..frame }
}

impl FrameMeter {
    fn feed(&mut self, frames: &[Frame], now: Duration) -> Result<(), Flood> {
        frames.iter().try_for_each(|frame| self.note(*frame, now))
    }
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
fn copies_passed(unit: &[Frame], copies_max: usize, expected: Flood) -> usize {
    let mut meter = FrameMeter::new(&small_budgets());
    for copy in 0..copies_max {
        if let Err(flood) = meter.feed(unit, NOW) {
            assert_eq!(flood, expected);
            return copy;
        }
    }
    copies_max
}

#[test]
fn floods_end_at_the_burst() {
    let cases = [
        (vec![frame(RST_STREAM, 1, 0)], Flood::Resets, 100),
        (vec![frame(PING, 0, 0)], Flood::ControlFrames, 100),
        (vec![frame(SETTINGS, 0, 0)], Flood::ControlFrames, 100),
        (vec![frame(PRIORITY, 3, 0)], Flood::ControlFrames, 100),
        (vec![frame(WINDOW_UPDATE, 0, 0)], Flood::ControlFrames, 100),
        (vec![frame(0x77, 0, 0)], Flood::ControlFrames, 100),
        (vec![frame(DATA, 1, 1)], Flood::SmallDataFrames, 100),
        (vec![frame(DATA, 1, 63)], Flood::SmallDataFrames, 100),
        (vec![frame(DATA, 1, 0)], Flood::SmallDataFrames, 10),
        (vec![frame(CONTINUATION, 1, 0)], Flood::Continuations, 4),
        // Frames in between do not hide the row of another kind.
        (vec![frame(RST_STREAM, 1, 0), frame(DATA, 1, 64)], Flood::Resets, 100),
    ];
    for (unit, flood, passed) in &cases {
        assert_eq!(copies_passed(unit, 1000, *flood), *passed, "{flood:?} {unit:?}");
    }
}

#[test]
fn honest_traffic_passes() {
    let headers = frame(HEADERS, 1, 0);
    let cases = [
        vec![frame(DATA, 1, 64)],
        vec![last(frame(DATA, 1, 0))],
        vec![last(frame(DATA, 1, 1))],
        vec![headers],
        [vec![headers], vec![frame(CONTINUATION, 1, 0); 4]].concat(),
    ];
    for unit in &cases {
        assert_eq!(copies_passed(unit, 5000, Flood::Continuations), 5000, "{unit:?}");
    }
}

#[test]
fn resets_of_both_sides_share_one_budget() {
    let reset = [frame(RST_STREAM, 1, 0)];
    let mut meter = FrameMeter::new(&small_budgets());
    for _ in 0..50 {
        assert_eq!(meter.feed(&reset, NOW), Ok(()));
        assert_eq!(meter.note_reset_sent(NOW), Ok(()));
    }
    assert_eq!(meter.note_reset_sent(NOW), Err(Flood::Resets));
}

#[test]
fn a_browser_may_leave_a_page_every_few_seconds() {
    let mut meter = FrameMeter::new(&FrameBudgets::default());
    let hundred = [frame(RST_STREAM, 1, 0); 100];
    for page in 0..100 {
        assert_eq!(meter.feed(&hundred, NOW + Duration::from_secs(4 * page)), Ok(()), "page {page}");
    }
    let storm = [last(frame(HEADERS, 1, 0)), frame(RST_STREAM, 1, 0)];
    let later = NOW + Duration::from_secs(1000);
    assert_eq!(meter.feed(&storm.repeat(500), later), Err(Flood::Resets));
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
    let ping = [frame(PING, 0, 0)];
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
    let update = frame(WINDOW_UPDATE, 1, 0);
    let ping = frame(PING, 0, 0);
    // A long download: two updates and a ping for each DATA frame.
    let mut meter = FrameMeter::new(&small_budgets());
    for _ in 0..10_000 {
        meter.note_data_sent(16_384);
        assert_eq!(meter.feed(&[update, update, ping], NOW), Ok(()));
    }
    // Many small requests, each opened with an update and reprioritised.
    let mut meter = FrameMeter::new(&small_budgets());
    for request in 0..10_000 {
        let id = 2 * request + 1;
        let frames = [last(frame(HEADERS, id, 0)), frame(WINDOW_UPDATE, id, 0), frame(PRIORITY_UPDATE, 0, 0)];
        assert_eq!(meter.feed(&frames, NOW), Ok(()));
    }
}

#[test]
fn what_traffic_does_not_pay_for() {
    // A window opened byte by byte (CVE-2019-9511).
    let dribble = [frame(WINDOW_UPDATE, 1, 0)];
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
        let unit = [frame(kind, 0, 0)];
        let passed = (0..50_000).take_while(|_| meter.feed(&unit, NOW).is_ok()).count();
        assert_eq!(passed, passed_max, "{kind}");
    }
    // A trailing HEADERS frame opens nothing.
    let mut meter = FrameMeter::new(&small_budgets());
    for _ in 0..200 {
        assert_eq!(meter.note(last(frame(HEADERS, 1, 0)), NOW), Ok(()));
    }
    assert_eq!(meter.feed(&dribble.repeat(105), NOW), Err(Flood::ControlFrames));
}
