//! HPACK's decoder with its dynamic table, and integers and strings for both directions (RFC 7541).

use std::collections::VecDeque;

use super::huffman;

/// RFC 7541 Appendix A, from index 1.
pub(crate) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// RFC 7541 §4.1: what an entry counts beside its text.
pub(crate) const ENTRY_OVERHEAD: usize = 32;
/// Our SETTINGS_HEADER_TABLE_SIZE, and the default of every peer.
pub(crate) const TABLE_BYTES: usize = 4096;
/// A decoded string.
const STRING_BYTES_MAX: usize = 64 * 1024;

/// The block cannot be decoded: a connection error (RFC 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HpackError;

/// Reads an integer with a prefix of `bits` (RFC 7541 §5.1), and what follows it.
fn integer(bytes: &[u8], bits: u32) -> Result<(usize, &[u8]), HpackError> {
    let (first, mut rest) = bytes.split_first().ok_or(HpackError)?;
    let mask = (1usize << bits) - 1;
    let mut value = usize::from(*first) & mask;
    if value < mask {
        return Ok((value, rest));
    }
    for shift in (0..28).step_by(7) {
        let (byte, more) = rest.split_first().ok_or(HpackError)?;
        rest = more;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok((value, rest));
        }
    }
    Err(HpackError)
}

/// Appends an integer with a prefix of `bits` below the pattern.
pub(crate) fn put_integer(pattern: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let mask = (1usize << bits) - 1;
    let low = |value: usize| u8::try_from(value & 0xff).unwrap_or(0);
    if value < mask {
        out.push(pattern | low(value));
        return;
    }
    out.push(pattern | low(mask));
    let mut left = value - mask;
    while left >= 0x80 {
        out.push(low(left & 0x7f) | 0x80);
        left >>= 7;
    }
    out.push(low(left));
}

/// Appends a string as it is (RFC 7541 §5.2).
pub(crate) fn put_string(text: &[u8], out: &mut Vec<u8>) {
    put_integer(0, 7, text.len(), out);
    out.extend_from_slice(text);
}

/// One entry: the name's bytes, then the value's.
#[derive(Debug)]
struct Entry {
    text: Box<[u8]>,
    name_bytes: usize,
}

impl Entry {
    fn size(&self) -> usize {
        self.text.len() + ENTRY_OVERHEAD
    }
}

/// The receiving end's state of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: VecDeque<Entry>,
    table_bytes: usize,
    table_bytes_max: usize,
    name: Vec<u8>,
    value: Vec<u8>,
    /// Changes of the table so far.
    changes: u64,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            table: VecDeque::new(),
            table_bytes: 0,
            table_bytes_max: TABLE_BYTES,
            name: Vec::new(),
            value: Vec::new(),
            changes: 0,
        }
    }

    /// Counts up with each change of the table: a block that changes nothing means the same again until then.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Hands every field of a block to `field`.
    ///
    /// # Errors
    /// [`HpackError`]; the connection is lost.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), HpackError> {
        let mut rest = block;
        while let Some(first) = rest.first() {
            rest = match first {
                // Indexed (§6.1).
                0x80.. => {
                    let (index, after) = integer(rest, 7)?;
                    self.with(index, &mut field)?;
                    after
                }
                // A change of the table's size (§6.3).
                0x20..0x40 => {
                    let (bytes, after) = integer(rest, 5)?;
                    if bytes > TABLE_BYTES {
                        return Err(HpackError);
                    }
                    self.table_bytes_max = bytes;
                    self.changes += 1;
                    self.shrink();
                    after
                }
                // Literals: with indexing 01 (§6.2.1), without 0000, never 0001.
                _ => self.literal(rest, first & 0x40 != 0, &mut field)?,
            };
        }
        Ok(())
    }

    fn with(&self, index: usize, field: &mut impl FnMut(&[u8], &[u8])) -> Result<(), HpackError> {
        if let Some((name, value)) = index.checked_sub(1).and_then(|at| STATIC.get(at)) {
            field(name.as_bytes(), value.as_bytes());
            return Ok(());
        }
        let at = index.checked_sub(STATIC.len() + 1).ok_or(HpackError)?;
        let entry = self.table.get(at).ok_or(HpackError)?;
        let (name, value) = entry.text.split_at(entry.name_bytes);
        field(name, value);
        Ok(())
    }

    fn literal<'b>(
        &mut self,
        bytes: &'b [u8],
        is_indexed: bool,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<&'b [u8], HpackError> {
        let (index, mut rest) = integer(bytes, if is_indexed { 6 } else { 4 })?;
        let mut name = std::mem::take(&mut self.name);
        name.clear();
        if index == 0 {
            rest = string(rest, &mut name)?;
        } else {
            self.with(index, &mut |found, _| name.extend_from_slice(found))?;
        }
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        rest = string(rest, &mut value)?;
        field(&name, &value);
        if is_indexed {
            let text = [name.as_slice(), value.as_slice()].concat().into_boxed_slice();
            let entry = Entry { text, name_bytes: name.len() };
            self.table_bytes += entry.size();
            self.changes += 1;
            self.table.push_front(entry);
            self.shrink();
        }
        (self.name, self.value) = (name, value);
        Ok(rest)
    }

    /// Evicts from the old end (§4.4).
    fn shrink(&mut self) {
        while self.table_bytes > self.table_bytes_max {
            let Some(entry) = self.table.pop_back() else { return };
            self.table_bytes -= entry.size();
        }
    }
}

fn string<'b>(bytes: &'b [u8], out: &mut Vec<u8>) -> Result<&'b [u8], HpackError> {
    let is_huffman = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let (len, rest) = integer(bytes, 7)?;
    if len > STRING_BYTES_MAX {
        return Err(HpackError);
    }
    let (text, rest) = rest.split_at_checked(len).ok_or(HpackError)?;
    if is_huffman {
        huffman::decode(text, out).ok_or(HpackError)?;
    } else {
        out.extend_from_slice(text);
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(decoder: &mut Decoder, block: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder
            .decode(block, |name, value| found.push(format!("{}: {}", text(name), text(value))))
            .expect("good");
        found
    }

    #[test]
    fn requests_of_the_rfc_with_a_growing_table() {
        // RFC 7541 Appendix C.4.
        let mut decoder = Decoder::new();
        let first = [
            0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4,
            0xff,
        ];
        assert_eq!(
            fields(&mut decoder, &first),
            [":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"]
        );
        assert_eq!(decoder.table_bytes, 57);
        let second = [0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
        assert_eq!(
            fields(&mut decoder, &second)[3..],
            [":authority: www.example.com", "cache-control: no-cache"]
        );
        assert_eq!(decoder.table_bytes, 110);
        assert_eq!(decoder.changes(), 2);
    }

    #[test]
    fn the_table_evicts_and_shrinks() {
        let mut decoder = Decoder::new();
        let mut block = Vec::new();
        for n in 0..200 {
            block.push(0x40);
            put_string(format!("name-{n}").as_bytes(), &mut block);
            put_string(&[b'v'; 20], &mut block);
        }
        assert_eq!(fields(&mut decoder, &block).len(), 200);
        assert!(decoder.table_bytes <= TABLE_BYTES && decoder.table.len() < 80);
        assert_eq!(fields(&mut decoder, &[0xbe]), ["name-199: vvvvvvvvvvvvvvvvvvvv"]);
        assert_eq!(fields(&mut decoder, &[0x20]), Vec::<String>::new());
        assert!(decoder.table.is_empty() && decoder.table_bytes == 0);
        assert_eq!(decoder.decode(&[0xbe], |_, _| {}), Err(HpackError));
    }

    #[test]
    fn integers_go_both_ways_and_bad_blocks_are_errors() {
        for value in [0, 9, 30, 31, 127, 128, 1337, 4096, 100_000] {
            for bits in [4, 5, 6, 7] {
                let mut out = Vec::new();
                put_integer(0, bits, value, &mut out);
                assert_eq!(integer(&out, bits), Ok((value, &[][..])));
            }
        }
        for block in [
            &[0x80][..],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x40, 5, b'a'],
            &[0x3f, 0xe2, 0x1f],
            &[0xff],
        ] {
            assert_eq!(Decoder::new().decode(block, |_, _| {}), Err(HpackError), "{block:?}");
        }
    }
}
