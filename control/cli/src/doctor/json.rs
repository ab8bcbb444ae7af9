//! Findings as JSON. Fields are only ever added within a schema version; a program may rely on those named here.

use serde_json::{Value, json};

use super::finding::Finding;

/// Raised when a field changes its meaning or goes away.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// One document, one line, with a newline at its end.
pub(super) fn print(findings: &[Finding]) -> String {
    let findings: Vec<Value> = findings
        .iter()
        .map(|f| {
            json!({
                "id": f.id,
                "subject": f.subject,
                "found": f.found,
                "advised": f.advised,
                "severity": f.severity.as_str(),
                "why": f.why,
                "fix_command": f.fix_command,
            })
        })
        .collect();
    format!("{}\n", json!({ "version": SCHEMA_VERSION, "findings": findings }))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::finding::{Check, Severity};
    use super::print;

    #[test]
    fn the_schema_is_as_published() {
        let check = || Check::new("tcp.x", "net.x", "1", "because \"quotes\"");
        let text = print(&[check().ok("1"), check().differs(Severity::Fail, "0", "sysctl -w net.x=1")]);
        assert_eq!(text.lines().count(), 1);
        let value: Value = serde_json::from_str(&text).expect("valid JSON");
        let expected = serde_json::json!({
            "version": 1,
            "findings": [
                {"id": "tcp.x", "subject": "net.x", "found": "1", "advised": "1", "severity": "ok",
                 "why": "because \"quotes\"", "fix_command": null},
                {"id": "tcp.x", "subject": "net.x", "found": "0", "advised": "1", "severity": "fail",
                 "why": "because \"quotes\"", "fix_command": "sysctl -w net.x=1"},
            ],
        });
        assert_eq!(value, expected);
    }
}
