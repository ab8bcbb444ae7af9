//! The frame meter: the same verdict and counts however the bytes are cut, and the same as a plain walk.
//! Input: piece size, bytes after the preface.

#![no_main]

use std::time::Duration;

use http_wire::frame_meter::{Budget, Flood, FrameBudgets, FrameCounts, FrameMeter};
use libfuzzer_sys::fuzz_target;

const NOW: Duration = Duration::from_secs(7);

fuzz_target!(|data: &[u8]| {
    let Some((&size, bytes)) = data.split_first() else {
        return;
    };
    let burst = if size & 0x80 == 0 { 4 } else { 1_000_000 };
    let budget = Budget { frames: 1, window: Duration::from_secs(1), burst };
    let budgets = FrameBudgets {
        resets: budget,
        control_frames: budget,
        small_data_frames: budget,
        continuations_in_row_max: burst,
    };
    let whole = run(&budgets, [bytes]);
    assert_eq!(run(&budgets, bytes.chunks(usize::from(size & 0x7f) + 1)), whole);
    assert_eq!(run(&budgets, bytes.chunks(1)), whole);
    if whole.0.is_ok() {
        assert_eq!(whole.1, walk(bytes));
    } else {
        assert_eq!(burst, 4, "a million frames do not fit");
    }
});

fn run<'a>(
    budgets: &FrameBudgets,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Result<(), Flood>, FrameCounts) {
    let mut meter = FrameMeter::new(budgets);
    let result = pieces.into_iter().try_for_each(|piece| meter.feed(piece, NOW));
    (result, *meter.counts())
}

/// A DATA frame that breaks off between its head and its pad length is counted by neither.
fn walk(bytes: &[u8]) -> FrameCounts {
    let mut counts = FrameCounts::default();
    let mut stream_id_max = 0;
    let mut rest = bytes;
    while let Some((&[l2, l1, l0, kind, flags, s3, s2, s1, s0], after)) = rest.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, l2, l1, l0]);
        let stream_id = u32::from_be_bytes([s3 & 0x7f, s2, s1, s0]);
        match kind {
            0 => {
                let mut content = length;
                if flags & 8 != 0 && length > 0 {
                    let Some(&pad) = after.first() else { break };
                    content = length.saturating_sub(u32::from(pad) + 1);
                }
                counts.data_frames += 1;
                counts.data_bytes += u64::from(content);
            }
            1 => {
                counts.headers_frames += 1;
                if stream_id > stream_id_max {
                    stream_id_max = stream_id;
                    counts.streams_opened += 1;
                }
            }
            3 => counts.resets_received += 1,
            9 => {}
            _ => counts.control_frames += 1,
        }
        rest = after.get(length as usize..).unwrap_or(&[]);
    }
    counts
}
