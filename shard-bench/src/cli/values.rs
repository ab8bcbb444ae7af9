//! Values of options: spans, rates, stages, bursts, CPU lists. Each error names the value and the form that is wanted.

use std::time::Duration;

use core_runtime::shard::DriverChoice;
use tls::{KeyExchange, Version, Versions};

use crate::load::{Burst, Stage};
use crate::number::seconds;

/// `10s`, `250ms`, `1.5m`, `1h`; a bare number is seconds.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    match number.parse::<f64>() {
        Ok(value) if (value * factor).is_finite() => Ok(seconds(value * factor)),
        _ => Err(format!("{text} is no span of time; want a number and us, ms, s, m or h, such as 250ms")),
    }
}

/// Requests a second, which may be a fraction: `0.5`, `1000`, `20k`, `1.5M`.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |number| (number, 1e6)),
    };
    match number.parse::<f64>().map(|value| value * factor) {
        Ok(value) if value.is_finite() && (0.0..=1e9).contains(&value) => Ok(value),
        _ => Err(format!("{text} is no rate; want requests a second, such as 0.5, 1000 or 20k")),
    }
}

/// A count with the same suffixes.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is no count; want a whole number above 0, such as 64 or 10k");
    let value = rate(text).ok().filter(|value| *value >= 1.0 && value.fract() == 0.0).ok_or_else(wrong)?;
    Ok(crate::number::whole(value))
}

/// Bytes a second: `64k`, `1M`, by thousands.
pub(crate) fn byte_rate(text: &str) -> Result<u64, String> {
    count(text).map_err(|_count| format!("{text} is no speed; want bytes a second, such as 64k"))
}

/// `10s:1000,30s:1000-5000,5s:0`: span and rate, or rates at its two ends, of each stage.
pub(crate) fn stages(text: &str) -> Result<Vec<Stage>, String> {
    let wrong =
        |why: &str| format!("{text}: {why}; want SPAN:RATE or SPAN:FROM-TO, such as 10s:1000,30s:1000-5000");
    let mut stages = Vec::new();
    for part in text.split(',') {
        let (length, rates) = part.split_once(':').ok_or_else(|| wrong(&format!("no : in {part:?}")))?;
        let length = span(length).map_err(|why| wrong(&why))?;
        if length.is_zero() {
            return Err(wrong("a stage without length"));
        }
        let (from, to) = rates.split_once('-').unwrap_or((rates, rates));
        let (from, to) = (rate(from).map_err(|why| wrong(&why))?, rate(to).map_err(|why| wrong(&why))?);
        stages.push(Stage { length, from, to });
    }
    Ok(stages)
}

/// `100/1s`: so many requests at once, every so often.
pub(crate) fn burst(text: &str) -> Result<Burst, String> {
    let wrong = |why: String| format!("{text}: {why}; want SIZE/SPAN, such as 100/1s");
    let (size, every) = text.split_once('/').ok_or_else(|| wrong("no /".to_owned()))?;
    let burst = Burst { size: count(size).map_err(wrong)?, every: span(every).map_err(wrong)? };
    if burst.every.is_zero() { Err(wrong("no time between bursts".to_owned())) } else { Ok(burst) }
}

/// `0,2-3`.
pub(crate) fn cpus(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("{text} is no list of CPUs; want numbers and ranges, such as 0,2-3");
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let low: usize = low.parse().ok().ok_or_else(wrong)?;
        let high: usize =
            high.parse().ok().filter(|high| (low..low + 1024).contains(high)).ok_or_else(wrong)?;
        cpus.extend(low..=high);
    }
    Ok(cpus)
}

/// `x25519,secp256r1`.
pub(crate) fn groups(text: &str) -> Result<Vec<KeyExchange>, String> {
    let group = |name: &str| match name.to_ascii_lowercase().as_str() {
        "x25519" => Ok(KeyExchange::X25519),
        "secp256r1" | "p-256" => Ok(KeyExchange::Secp256r1),
        "secp384r1" | "p-384" => Ok(KeyExchange::Secp384r1),
        "x25519mlkem768" => Ok(KeyExchange::X25519MlKem768),
        _ => Err(format!("{name} is no group; want x25519, secp256r1, secp384r1 or x25519mlkem768")),
    };
    text.split(',').map(group).collect()
}

/// `1.2` or `1.3`: that version and no other.
pub(crate) fn tls_version(text: &str) -> Result<Versions, String> {
    let version = match text {
        "1.2" => Version::Tls12,
        "1.3" => Version::Tls13,
        _ => return Err(format!("{text}: want 1.2 or 1.3")),
    };
    Ok(Versions { min: version, max: version })
}

/// How the reactor waits for the kernel.
pub(crate) fn driver(text: &str) -> Result<DriverChoice, String> {
    match text {
        "auto" => Ok(DriverChoice::Auto),
        "ring" => Ok(DriverChoice::Ring),
        "epoll" => Ok(DriverChoice::Epoll),
        _ => Err(format!("{text}: want auto, ring or epoll")),
    }
}

/// Start times, one a line in seconds from the start of the trace, rising; what follows a space is ignored.
pub(crate) fn trace(text: &str) -> Result<Vec<Duration>, String> {
    const TIMES_MAX: usize = 10_000_000;
    let mut times: Vec<Duration> = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let word = line.split([' ', '\t', ',']).next().unwrap_or_default();
        let time = word.parse::<f64>().ok().filter(|time| time.is_finite() && *time >= 0.0);
        let time = seconds(time.ok_or_else(|| format!("line {number}: {word} is no time in seconds"))?);
        if times.last().is_some_and(|last| time < *last) {
            return Err(format!("line {number}: {word} is before the line above; sort the trace by time"));
        }
        if times.len() == TIMES_MAX {
            return Err(format!("line {number}: more than {TIMES_MAX} times"));
        }
        times.push(time);
    }
    if times.is_empty() { Err("no times in it".to_owned()) } else { Ok(times) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_values() {
        for (text, ms) in [("10s", 10_000), ("250ms", 250), ("1.5m", 90_000), ("2", 2_000), ("1h", 3_600_000)]
        {
            assert_eq!(span(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for (text, want) in [("0.5", 0.5), ("20k", 20_000.0), ("1.5M", 1_500_000.0), ("0", 0.0)] {
            assert_eq!(rate(text), Ok(want), "{text}");
        }
        assert_eq!(count("10k"), Ok(10_000));
        let two = stages("10s:100,500ms:100-0").expect("good");
        assert_eq!((two[1].length, two[1].from, two[1].to), (Duration::from_millis(500), 100.0, 0.0));
        assert_eq!(burst("100/1s"), Ok(Burst { size: 100, every: Duration::from_secs(1) }));
        assert_eq!(cpus("0,2-4"), Ok(vec![0, 2, 3, 4]));
        assert_eq!(groups("X25519,p-256"), Ok(vec![KeyExchange::X25519, KeyExchange::Secp256r1]));
        assert_eq!(trace("# t\n0\n0.5 GET /\n0.5").expect("good").len(), 3);
    }

    #[test]
    fn bad_values_are_named_with_the_way_out() {
        for (error, fault) in [
            (span("10x").expect_err("bad"), "10x"),
            (span("").expect_err("bad"), "no span"),
            (rate("-1").expect_err("bad"), "-1 is no rate"),
            (count("0").expect_err("bad"), "0 is no count"),
            (count("1.5").expect_err("bad"), "1.5"),
            (stages("10s").expect_err("bad"), "no :"),
            (stages("0s:5").expect_err("bad"), "without length"),
            (burst("5").expect_err("bad"), "no /"),
            (cpus("3-1").expect_err("bad"), "3-1"),
            (groups("rsa").expect_err("bad"), "rsa is no group"),
            (trace("1\n0.5").expect_err("bad"), "line 2"),
            (trace("x").expect_err("bad"), "line 1"),
            (trace("#").expect_err("bad"), "no times"),
        ] {
            assert!(error.contains(fault), "{error}");
        }
    }
}
