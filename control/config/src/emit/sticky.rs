//! Sticky sessions of a cluster. The files of their keys are read, looked through and put into the set inline.

use control_api::defaults::balance::STICKY_KEY_BYTES;
use control_api::envoy::tls::{GenericSecret, secret};
use control_api::shard::v1::Sticky;

use super::{Emitter, inline_bytes, span};
use crate::yaml::Node;

impl Emitter<'_> {
    /// None without sessions.
    pub(super) fn sticky(&mut self, node: &Node, policy: &str) -> Option<Sticky> {
        let sticky = node.get("sticky")?;
        if matches!(policy, "ring_hash" | "maglev") {
            let message = format!("`sticky` and `{policy}` exclude each other: each has a key of its own");
            self.error(sticky, message, "keep one of the two");
        }
        let files = sticky.list("keys");
        if files.is_empty() {
            self.error(sticky, "session cookies cannot be signed without a key", KEY_HINT);
        }
        let word = |key| sticky.word(key).unwrap_or_default().to_owned();
        Some(Sticky {
            cookie: word("cookie"),
            path: word("path"),
            max_age: span(sticky.duration("max_age")),
            keys: files.iter().filter_map(|file| self.cookie_key(file)).collect(),
            overlap: span(sticky.duration("overlap")),
            virtual_nodes: sticky.int("virtual_nodes"),
        })
    }

    /// Puts a key into the set; returns the secret's name.
    fn cookie_key(&mut self, file: &Node) -> Option<String> {
        let contents = self.read_file(file)?;
        self.warn_of_readable_key(file);
        let (least, most) = (STICKY_KEY_BYTES.min, STICKY_KEY_BYTES.max);
        if !(least..=most).contains(&contents.len()) {
            let message =
                format!("a key of session cookies has {least} to {most} bytes, this file {}", contents.len());
            self.error(file, message, KEY_HINT);
            return None;
        }
        let name = format!("cookie-key:{}", file.text()?);
        let secret = GenericSecret { secret: Some(inline_bytes(&contents)), ..Default::default() };
        self.insert_secret(&name, secret::Type::GenericSecret(secret));
        Some(name)
    }
}

const KEY_HINT: &str = "make one by `openssl rand 32 > FILE`";
