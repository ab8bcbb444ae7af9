//! "Did you mean": the nearest of a few known words.

/// The known word nearest to `written`, if near enough to be a slip.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let budget = (written.len() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|word| (distance(written, word, budget), word))
        .filter(|(far, _)| *far <= budget)
        .min_by_key(|(far, _)| *far)
        .map(|(_, word)| word)
}

/// Optimal string alignment distance, where a swap of neighbours counts one; above `budget` any larger number.
fn distance(a: &str, b: &str, budget: usize) -> usize {
    // Written keys may be long; what is too long to be near is not compared.
    if a.len().abs_diff(b.len()) > budget {
        return budget + 1;
    }
    let (a, b): (Vec<char>, Vec<char>) = (normal(a), normal(b));
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &to) in b.iter().enumerate() {
            let substituted = last[j] + usize::from(from != to);
            let mut best = substituted.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && from == b[j - 1] && a[i - 1] == to {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(budget + 1)
}

fn normal(word: &str) -> Vec<char> {
    word.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_word_and_strangers_do_not() {
        let known = ["timeout", "idle_timeout", "routes", "hosts", "tls"];
        for (written, meant) in [
            ("timout", Some("timeout")),
            ("tiemout", Some("timeout")),
            ("idle-timeout", Some("idle_timeout")),
            ("Hosts", Some("hosts")),
            ("route", Some("routes")),
            ("tsl", Some("tls")),
            ("address", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(written, known), meant, "{written}");
        }
    }
}
