//! What a request of the soak asks its backend for, as it stands in the target. Written by the traffic, read by the
//! `soak_backend` binary.

/// `/CLUSTER/WHAT/ID?bytes=…&pieces=…&gap=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub cluster: String,
    pub what: String,
    pub id: u64,
    /// Of a download.
    pub bytes: usize,
    pub pieces: usize,
    /// Pause after each piece.
    pub gap_ms: u64,
}

impl Ask {
    /// Reads a target; None when it is none of the soak's.
    #[must_use]
    pub fn parse(target: &str) -> Option<Self> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut words = path.strip_prefix('/')?.split('/');
        let mut ask = Self {
            cluster: words.next()?.to_owned(),
            what: words.next()?.to_owned(),
            id: words.next()?.parse().ok()?,
            pieces: 1,
            ..Self::default()
        };
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "bytes" => ask.bytes = value.parse().ok()?,
                "pieces" => ask.pieces = value.parse::<usize>().ok()?.max(1),
                "gap" => ask.gap_ms = value.parse().ok()?,
                _ => {}
            }
        }
        Some(ask)
    }

    /// The target that [`Self::parse`] reads.
    #[must_use]
    pub fn target(&self) -> String {
        let Self { cluster, what, id, bytes, pieces, gap_ms } = self;
        if *bytes == 0 {
            return format!("/{cluster}/{what}/{id}");
        }
        format!("/{cluster}/{what}/{id}?bytes={bytes}&pieces={pieces}&gap={gap_ms}")
    }

    /// The byte that every body of this request consists of, so that a mix-up of two shows.
    #[must_use]
    pub fn byte(&self) -> u8 {
        u8::try_from(self.id % 251).unwrap_or(0)
    }

    /// The pieces of a download.
    pub fn pieces(&self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let (bytes, pieces, byte) = (self.bytes, self.pieces, self.byte());
        (0..pieces).map(move |at| vec![byte; bytes * (at + 1) / pieces - bytes * at / pieces])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_says_the_whole_ask() {
        let ask = Ask {
            cluster: "one".to_owned(),
            what: "down".to_owned(),
            id: 77,
            bytes: 10,
            pieces: 3,
            gap_ms: 5,
        };
        assert_eq!(Ask::parse(&ask.target()), Some(ask.clone()));
        assert_eq!(ask.pieces().map(|piece| piece.len()).sum::<usize>(), 10);
        assert_eq!(Ask::parse("/favicon.ico"), None);
    }
}
