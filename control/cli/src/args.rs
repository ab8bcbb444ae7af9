//! The words of a command line: flags, options with a value (`--key value` or `--key=value`), positionals.
//!
//! A command takes what it knows out of [`Args`] and then calls [`Args::finish`], which complains of what is left.

use std::fmt;
use std::str::FromStr;

/// A wrong command line; the text says what is wrong, the caller adds where help is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsageError(String);

impl UsageError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The words that nobody has taken yet, in order.
#[derive(Clone, Debug)]
pub(crate) struct Args {
    words: Vec<String>,
}

impl Args {
    pub(crate) fn new(words: Vec<String>) -> Self {
        Self { words }
    }

    /// Takes every `name`; whether there was one.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let end = self.options_end();
        let mut at = 0;
        let before = self.words.len();
        self.words.retain(|word| {
            at += 1;
            at > end || word != name
        });
        self.words.len() != before
    }

    /// Takes `name VALUE` or `name=VALUE`.
    ///
    /// # Errors
    /// When the value is missing or the option comes twice.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>, UsageError> {
        let mut values = self.values(name)?;
        match (values.pop(), values.is_empty()) {
            (value, true) => Ok(value),
            (_, false) => Err(UsageError(format!("{name} is given more than once"))),
        }
    }

    /// Takes every `name VALUE` and `name=VALUE`, in order.
    ///
    /// # Errors
    /// When a value is missing.
    pub(crate) fn values(&mut self, name: &str) -> Result<Vec<String>, UsageError> {
        let mut values = Vec::new();
        while let Some(at) = self.words[..self.options_end()].iter().position(|word| is_option(word, name)) {
            let word = self.words.remove(at);
            match word[name.len()..].strip_prefix('=') {
                Some(value) => values.push(value.to_owned()),
                None if at < self.options_end() => values.push(self.words.remove(at)),
                None => return Err(UsageError(format!("{name} wants a value"))),
            }
        }
        Ok(values)
    }

    /// As [`Args::value`], parsed; `wanted` says what the value should be.
    ///
    /// # Errors
    /// As [`Args::value`], and when the value does not parse.
    pub(crate) fn value_parsed<T: FromStr>(
        &mut self,
        name: &str,
        wanted: &str,
    ) -> Result<Option<T>, UsageError>
    where
        T::Err: fmt::Display,
    {
        let Some(text) = self.value(name)? else {
            return Ok(None);
        };
        let parsed = text.parse::<T>();
        parsed.map(Some).map_err(|e| UsageError(format!("{name} {text}: {e}; {wanted} is wanted")))
    }

    /// Takes the next positional word.
    pub(crate) fn positional(&mut self) -> Option<String> {
        let at = self
            .words
            .iter()
            .enumerate()
            .position(|(at, word)| at >= self.options_end() || !word.starts_with('-'));
        match at {
            Some(at) if at >= self.options_end() && self.words.get(at).is_some_and(|w| w == "--") => {
                (at + 1 < self.words.len()).then(|| self.words.remove(at + 1))
            }
            Some(at) => Some(self.words.remove(at)),
            None => None,
        }
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// Names the first word that no option and no positional took.
    pub(crate) fn finish(self) -> Result<(), UsageError> {
        match self.words.iter().find(|word| *word != "--") {
            None => Ok(()),
            Some(word) if word.starts_with('-') => Err(UsageError(format!("unknown option {word}"))),
            Some(word) => Err(UsageError(format!("unexpected argument {word}"))),
        }
    }

    /// Index of `--`, behind which nothing is an option.
    fn options_end(&self) -> usize {
        self.words.iter().position(|word| word == "--").unwrap_or(self.words.len())
    }
}

fn is_option(word: &str, name: &str) -> bool {
    word.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || (name.starts_with("--") && rest.starts_with('=')))
}

#[cfg(test)]
mod tests {
    use super::Args;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn options_and_positionals_come_in_any_order() {
        for line in ["GET /x --json --config d -H a:1 -H b:2", "--json -H a:1 GET --config=d -H b:2 /x"] {
            let mut args = args(line);
            assert!(args.flag("--json"), "{line}");
            assert_eq!(args.value("--config").expect("one value").as_deref(), Some("d"), "{line}");
            assert_eq!(args.values("-H").expect("values"), ["a:1", "b:2"], "{line}");
            assert_eq!(args.positional().as_deref(), Some("GET"), "{line}");
            assert_eq!(args.positional().as_deref(), Some("/x"), "{line}");
            assert_eq!(args.positional(), None, "{line}");
            assert_eq!(args.finish(), Ok(()), "{line}");
        }
    }

    #[test]
    fn nothing_behind_two_dashes_is_an_option() {
        let mut args = args("--json -- --json -x");
        assert!(args.flag("--json"));
        assert!(!args.flag("--json"));
        assert_eq!(args.positional().as_deref(), Some("--json"));
        assert_eq!(args.positional().as_deref(), Some("-x"));
        assert_eq!(args.positional(), None);
        assert_eq!(args.finish(), Ok(()));
    }

    #[test]
    fn wrong_lines_name_what_is_wrong() {
        assert!(args("--config").value("--config").is_err_and(|e| e.to_string() == "--config wants a value"));
        assert!(args("--config -- x").value("--config").is_err());
        assert!(args("--c 1 --c 2").value("--c").is_err_and(|e| e.to_string().contains("more than once")));
        assert!(
            args("--n x")
                .value_parsed::<u8>("--n", "a number")
                .is_err_and(|e| e.to_string().contains("a number"))
        );
        assert!(args("--typo").finish().is_err_and(|e| e.to_string() == "unknown option --typo"));
        assert!(args("extra").finish().is_err_and(|e| e.to_string() == "unexpected argument extra"));
        assert_eq!(args("--configuration d").value("--config"), Ok(None), "no prefix match");
    }
}
