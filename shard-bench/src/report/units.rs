//! Numbers for people: spans with three digits, counts with a suffix.

use crate::number::float;

/// A span in nanoseconds with three significant digits and its unit, such as `1.25ms`.
pub(crate) fn span_text(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => three(float(ns) / 1e3, "µs"),
        1_000_000..1_000_000_000 => three(float(ns) / 1e6, "ms"),
        _ => three(float(ns) / 1e9, "s"),
    }
}

/// The same for microseconds.
pub(crate) fn span_of_us(us: f64) -> String {
    span_text(crate::number::whole(us * 1e3))
}

fn three(value: f64, unit: &str) -> String {
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}{unit}")
}

/// A count with its thousands set apart.
pub(crate) fn count_text(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes with a binary suffix.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let mut value = float(bytes);
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { three(value, &format!(" {unit}")) };
        }
        value /= 1024.0;
    }
    three(value, " TiB")
}

/// A share as a percentage.
pub(crate) fn percent_text(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 10.0 { format!("{percent:.0} %") } else { format!("{percent:.2} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        for (ns, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00µs"),
            (12_345, "12.3µs"),
            (123_456, "123µs"),
            (1_500_000, "1.50ms"),
            (2_000_000_000, "2.00s"),
        ] {
            assert_eq!(span_text(ns), text);
        }
        assert_eq!(count_text(1_234_567), "1,234,567");
        assert_eq!(count_text(12), "12");
        assert_eq!(bytes_text(512), "512 B");
        assert_eq!(bytes_text(1_572_864), "1.50 MiB");
        assert_eq!(percent_text(0.0123), "1.23 %");
    }
}
