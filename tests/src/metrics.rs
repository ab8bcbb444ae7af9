//! Reader of the Prometheus text format, for looking up what the product says about itself.

use std::collections::BTreeMap;

/// One sample line.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// All samples of one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    pub samples: Vec<Sample>,
}

impl Metrics {
    /// Reads the text format; comment lines are skipped.
    ///
    /// # Panics
    /// When a line is no sample.
    #[must_use]
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self {
            samples: lines
                .map(|line| sample(line).unwrap_or_else(|| panic!("no sample: {line:?}")))
                .collect(),
        }
    }

    /// Sum of all samples of `name` that carry all of `labels`; 0 when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|sample| sample.value).sum()
    }

    /// Number of series of `name` that carry all of `labels`.
    #[must_use]
    pub fn series(&self, name: &str, labels: &[(&str, &str)]) -> usize {
        self.matching(name, labels).count()
    }

    fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|found| found == value))
        })
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (name, rest) = match line.find('{') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => {
            let (name, value) = line.split_once(' ')?;
            return Some(Sample { name: name.to_owned(), labels: BTreeMap::new(), value: number(value)? });
        }
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    while let Some((key, tail)) = rest.split_once("=\"") {
        if key.contains('}') {
            break;
        }
        let (value, tail) = quoted(tail)?;
        labels.insert(key.trim_start_matches(',').to_owned(), value);
        rest = tail;
    }
    let value = rest.trim_start_matches([',', '}']).trim_start();
    Some(Sample { name: name.to_owned(), labels, value: number(value)? })
}

/// A label value up to its closing quote, unescaped, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

fn number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unescaped_and_summed() {
        let text = "# HELP a b\na{x=\"1\",y=\"q\\\"}\"} 2\na{x=\"2\"} 3\nb 4 1700000000\nc{} 1e3\n";
        let metrics = Metrics::parse(text);
        assert!((metrics.sum("a", &[]) - 5.0).abs() < f64::EPSILON);
        assert!((metrics.sum("a", &[("y", "q\"}")]) - 2.0).abs() < f64::EPSILON);
        assert!((metrics.sum("b", &[]) - 4.0).abs() < f64::EPSILON);
        assert!((metrics.sum("c", &[]) - 1000.0).abs() < f64::EPSILON);
        assert_eq!(metrics.series("a", &[]), 2);
    }
}
