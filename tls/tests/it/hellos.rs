//! ClientHellos that no well-behaved client sends: real ones with an extension or the cipher suites exchanged.

/// RFC 8446 §4.2.
pub(crate) const SERVER_NAME: u16 = 0;
pub(crate) const SIGNATURE_ALGORITHMS: u16 = 13;

/// A ClientHello taken apart.
pub(crate) struct Hello {
    /// Version, random and session id.
    head: Vec<u8>,
    pub(crate) cipher_suites: Vec<u8>,
    pub(crate) extensions: Vec<(u16, Vec<u8>)>,
}

impl Hello {
    /// From the one record that a client wrote.
    pub(crate) fn parse(record: &[u8]) -> Self {
        let body = &record[9..];
        let id = usize::from(body[34]);
        let (head, rest) = body.split_at(35 + id);
        let (suites, rest) = take_sized(rest);
        let compressions = usize::from(rest[0]);
        let (mut list, _) = take_sized(&rest[1 + compressions..]);
        let mut extensions = Vec::new();
        while !list.is_empty() {
            let kind = u16::from_be_bytes([list[0], list[1]]);
            let (payload, rest) = take_sized(&list[2..]);
            extensions.push((kind, payload.to_vec()));
            list = rest;
        }
        Self { head: head.to_vec(), cipher_suites: suites.to_vec(), extensions }
    }

    /// Exchanges an extension, adds it, or with None leaves it out. The pre-shared key stays last (RFC 8446 §4.2.11).
    pub(crate) fn set(&mut self, kind: u16, payload: Option<Vec<u8>>) {
        self.extensions.retain(|(k, _)| *k != kind);
        if let Some(payload) = payload {
            self.extensions.insert(0, (kind, payload));
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut extensions = Vec::new();
        for (kind, payload) in &self.extensions {
            extensions.extend(kind.to_be_bytes());
            extensions.extend(sized(payload));
        }
        let mut body = self.head.clone();
        body.extend(sized(&self.cipher_suites));
        body.extend([1, 0]);
        body.extend(sized(&extensions));
        let mut message = vec![1];
        message.extend(&u32::try_from(body.len()).expect("short").to_be_bytes()[1..]);
        message.extend(body);
        let mut record = vec![22, 3, 1];
        record.extend(sized(&message));
        record
    }
}

/// The payload of a server_name extension with these host names.
pub(crate) fn server_names(names: &[&[u8]]) -> Vec<u8> {
    let list: Vec<u8> = names.iter().flat_map(|n| [&[0][..], &sized(n)].concat()).collect();
    sized(&list)
}

pub(crate) fn sized(bytes: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(bytes.len()).expect("short").to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

fn take_sized(bytes: &[u8]) -> (&[u8], &[u8]) {
    let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    bytes[2..].split_at(len)
}
