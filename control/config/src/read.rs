//! Typed reading of checked nodes. A value that the check refused reads as unset: it is reported already.

use std::time::Duration;

use crate::schema::check::{parse_int, parse_number};
use crate::units::{parse_duration, parse_size};
use crate::yaml::Node;

impl Node {
    pub(crate) fn word(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)?.plain()? {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    pub(crate) fn is_on(&self, key: &str) -> bool {
        self.flag(key) == Some(true)
    }

    pub(crate) fn int(&self, key: &str) -> Option<u32> {
        let value = self.get(key)?.plain().and_then(parse_int)?;
        u32::try_from(value).ok()
    }

    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        self.get(key)?.plain().and_then(parse_number)
    }

    pub(crate) fn duration(&self, key: &str) -> Option<Duration> {
        parse_duration(self.get(key)?.text()?).ok()
    }

    pub(crate) fn size(&self, key: &str) -> Option<u64> {
        parse_size(self.get(key)?.text()?).ok()
    }

    /// A size that the table bounds below 4 GiB.
    pub(crate) fn small_size(&self, key: &str) -> Option<u32> {
        u32::try_from(self.size(key)?).ok()
    }

    /// The items under a key; none when it is unset.
    pub(crate) fn list(&self, key: &str) -> &[Node] {
        self.get(key).map_or(&[], Node::items)
    }

    /// The texts of the list under a key.
    pub(crate) fn words<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.list(key).iter().filter_map(Node::text)
    }

    pub(crate) fn strings(&self, key: &str) -> Vec<String> {
        self.words(key).map(str::to_owned).collect()
    }
}
