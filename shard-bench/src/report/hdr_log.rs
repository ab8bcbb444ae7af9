//! The HDR interval log: one V2 histogram a second, in the text format that other HDR tools read. Values are
//! nanoseconds; maxima in the log are milliseconds.

use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

/// Renders the log of a run that began at `begun`.
///
/// # Errors
/// What the serializer says.
pub(crate) fn render(
    intervals: &[Histogram<u64>],
    begun: SystemTime,
    label: &str,
) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment(&format!(
            "shard-bench {}: {label}; latency from the intended start, ns",
            env!("CARGO_PKG_VERSION")
        ))
        .with_start_time(begun)
        .with_base_time(begun)
        .with_max_value_divisor(1e6)
        .begin_log_with(&mut out, &mut serializer)
        .map_err(|error| format!("HDR log: {error}"))?;
    for (second, histogram) in intervals.iter().enumerate() {
        let at = Duration::from_secs(crate::number::count(second));
        writer
            .write_histogram(histogram, at, Duration::from_secs(1), None)
            .map_err(|error| format!("HDR log: {error:?}"))?;
    }
    drop(writer);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn the_log_reads_back() {
        let mut one = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds");
        for value in [1_000, 2_000_000, 900_000_000] {
            one.record(value).expect("in bounds");
        }
        let log = render(&[one.clone(), one], SystemTime::UNIX_EPOCH, "test").expect("renders");
        let mut seen = 0;
        for entry in IntervalLogIterator::new(&log) {
            if let Ok(LogEntry::Interval(interval)) = entry {
                let bytes = decode(interval.encoded_histogram());
                let read: Histogram<u64> =
                    Deserializer::new().deserialize(&mut bytes.as_slice()).expect("a histogram");
                assert_eq!(read.len(), 3);
                assert!(read.max().abs_diff(900_000_000) < 1_000_000);
                seen += 1;
            }
        }
        assert_eq!(seen, 2);
    }

    /// Base64 (RFC 4648 §4).
    fn decode(text: &str) -> Vec<u8> {
        let value = |byte: u8| match byte {
            b'A'..=b'Z' => u32::from(byte - b'A'),
            b'a'..=b'z' => u32::from(byte - b'a') + 26,
            b'0'..=b'9' => u32::from(byte - b'0') + 52,
            b'+' => 62,
            _ => 63,
        };
        let mut out = Vec::new();
        for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
            let bits =
                chunk.iter().fold(0, |bits, byte| (bits << 6) | value(*byte)) << (6 * (4 - chunk.len()));
            out.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
        }
        out
    }
}
