//! Findings as a table for people: aligned, at most 100 columns, a heading for each family, and under each
//! finding that asks for something the reason and the command.

use std::fmt::Write as _;

use super::finding::{Finding, NOT_APPLICABLE, Severity, UNKNOWN};

/// Columns of the whole table.
const WIDTH: usize = 100;
/// Columns of the severity, the subject, the found and the advised value; with gaps they fill [`WIDTH`].
const CELLS: [usize; 4] = [4, 34, 29, 28];
const INDENT: &str = "        ";

/// Whether severities are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    None,
    Ansi,
}

/// The whole table with its summary.
pub(super) fn print(findings: &[Finding], colour: Colour) -> String {
    let mut text = String::new();
    let mut family = "";
    for finding in findings {
        let this = finding.id.split('.').next().unwrap_or_default();
        if this != family {
            family = this;
            if !text.is_empty() {
                text.push('\n');
            }
            row(&mut text, ["", &family.replace('_', " "), "found", "advised"], Colour::None, Severity::Ok);
        }
        let word = finding.severity.as_str();
        row(&mut text, [word, &finding.subject, &finding.found, &finding.advised], colour, finding.severity);
        if finding.severity > Severity::Ok && !finding.found.starts_with(NOT_APPLICABLE) {
            paragraph(&mut text, "why: ", finding.why);
            if let Some(fix) = &finding.fix_command {
                paragraph(&mut text, "fix: ", fix);
            }
        }
    }
    summary(&mut text, findings);
    text
}

fn summary(text: &mut String, findings: &[Finding]) {
    let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let begins = |word: &str| findings.iter().filter(|f| f.found.starts_with(word)).count();
    line(
        text,
        &format!(
            "\n{} checks: {} ok, {} info, {} warn, {} fail ({} unknown, {} not applicable)",
            findings.len(),
            count(Severity::Ok),
            count(Severity::Info),
            count(Severity::Warn),
            count(Severity::Fail),
            begins(UNKNOWN),
            begins(NOT_APPLICABLE),
        ),
    );
}

/// One table row, as many lines high as its fullest cell.
fn row(text: &mut String, cells: [&str; 4], colour: Colour, severity: Severity) {
    let wrapped: [Vec<String>; 4] = std::array::from_fn(|i| wrap(cells[i], CELLS[i]));
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    for at in 0..height {
        let mut out = String::from("  ");
        for (column, lines) in wrapped.iter().enumerate() {
            let cell = lines.get(at).map_or("", String::as_str);
            let padded = format!("{cell:<width$}", width = CELLS[column]);
            match (column, colour) {
                (0, Colour::Ansi) if !cell.is_empty() => out.push_str(&paint(&padded, severity)),
                _ => out.push_str(&padded),
            }
            out.push(' ');
        }
        line(text, out.trim_end());
    }
}

fn paint(word: &str, severity: Severity) -> String {
    let code = match severity {
        Severity::Ok => "32",
        Severity::Info => "36",
        Severity::Warn => "33",
        Severity::Fail => "31",
    };
    format!("\u{1b}[{code}m{word}\u{1b}[0m")
}

fn paragraph(text: &mut String, label: &str, body: &str) {
    let lines = wrap(body, WIDTH - INDENT.len() - label.len());
    for (at, part) in lines.iter().enumerate() {
        let label = if at == 0 { label.to_owned() } else { " ".repeat(label.len()) };
        line(text, &format!("{INDENT}{label}{part}"));
    }
}

/// Breaks at blanks, and inside a word only when it alone is wider than `width`.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let last = lines.last_mut().expect("there is always a line, the first is made above");
            let used = last.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= width {
                if gap == 1 {
                    last.push(' ');
                }
                last.extend(word.iter());
                break;
            }
            if used == 0 {
                last.extend(word.drain(..width));
            }
            lines.push(String::new());
        }
    }
    lines
}

fn line(text: &mut String, content: &str) {
    // Writing to a String cannot fail.
    writeln!(text, "{content}").expect("a String takes every write");
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Check, Finding, Severity};
    use super::{Colour, WIDTH, print, wrap};

    fn findings() -> Vec<Finding> {
        let long = "x".repeat(150);
        let check = |id| {
            Check::new(
                id,
                "net.ipv4.tcp_slow_start_after_idle",
                "1 or something long to be advised",
                "why it is so",
            )
        };
        vec![
            check("tcp.a").ok("1"),
            check("tcp.b").differs(
                Severity::Warn,
                "a found value that is rather longer than its column",
                &long,
            ),
            check("cpu.c").differs(Severity::Fail, long.as_str(), "fix it"),
            check("cpu.d").not_applicable("no device"),
        ]
    }

    #[test]
    fn no_line_is_wider_than_the_page() {
        for line in print(&findings(), Colour::None).lines() {
            assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
            assert_eq!(line, line.trim_end());
        }
    }

    #[test]
    fn columns_are_aligned_and_families_have_headings() {
        let text = print(&findings(), Colour::None);
        let at = |needle: &str| text.lines().filter_map(|l| l.find(needle)).collect::<Vec<_>>();
        assert_eq!(at("net.ipv4.").iter().collect::<std::collections::BTreeSet<_>>().len(), 1, "one column");
        assert!(text.contains("  tcp ") && text.contains("  cpu "), "{text}");
        assert!(
            text.ends_with("4 checks: 1 ok, 1 info, 1 warn, 1 fail (0 unknown, 1 not applicable)\n"),
            "{text}"
        );
    }

    #[test]
    fn only_findings_that_ask_for_something_have_reasons() {
        let text = print(&findings(), Colour::None);
        assert_eq!(text.matches("why: ").count(), 2);
        assert_eq!(text.matches("fix: ").count(), 2);
    }

    #[test]
    fn colour_adds_escapes_and_nothing_else() {
        let plain = print(&findings(), Colour::None);
        let mut coloured = print(&findings(), Colour::Ansi);
        assert!(!plain.contains('\u{1b}') && coloured.contains("\u{1b}[31mfail\u{1b}[0m"));
        for code in ["[32m", "[36m", "[33m", "[31m", "[0m"] {
            coloured = coloured.replace(&format!("\u{1b}{code}"), "");
        }
        assert_eq!(coloured, plain);
    }

    #[test]
    fn wrapping_loses_no_character() {
        for (text, width) in
            [("", 5), ("a b c", 1), ("abcdefghij kl", 4), ("one two  three", 7), ("größer als", 3)]
        {
            let lines = wrap(text, width);
            assert!(lines.iter().all(|l| l.chars().count() <= width), "{lines:?}");
            assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""), "{lines:?}");
        }
    }
}
