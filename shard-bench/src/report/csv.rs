//! One line a second, for spreadsheets.

use super::document::Document;

/// Columns: times in microseconds; empty where there is no figure.
const HEADER: &str = "second,ended,failed,p50_us,p90_us,p99_us,p99.9_us,max_us,target_cpu_s,target_resident_bytes,generator_cpu_s\n";

/// The seconds of a run.
pub(crate) fn render(document: &Document) -> String {
    let mut text = HEADER.to_owned();
    for (index, second) in document.seconds.iter().enumerate() {
        let optional = |value: Option<String>| value.unwrap_or_default();
        let columns = [
            index.to_string(),
            second.ended.to_string(),
            second.failed.to_string(),
            second.p50_us.to_string(),
            second.p90_us.to_string(),
            second.p99_us.to_string(),
            second.p999_us.to_string(),
            second.max_us.to_string(),
            optional(second.target_cpu_s.map(|s| s.to_string())),
            optional(second.target_resident_bytes.map(|b| b.to_string())),
            second.generator_cpu_s.to_string(),
        ];
        text.push_str(&columns.join(","));
        text.push('\n');
    }
    text
}
