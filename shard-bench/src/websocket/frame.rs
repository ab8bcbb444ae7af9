//! WebSocket frames (RFC 6455 §5): writing them masked or not, and reading them out of a stream of bytes.

/// A message in one frame, or in fragments, may be as long as this.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;
const CONTROL_BYTES_MAX: u64 = 125;

pub(crate) mod opcode {
    //! RFC 6455 §11.8.
    pub(crate) const TEXT: u8 = 1;
    pub(crate) const BINARY: u8 = 2;
    pub(crate) const CLOSE: u8 = 8;
    pub(crate) const PING: u8 = 9;
    pub(crate) const PONG: u8 = 10;
}

/// Appends one whole message. A client masks (RFC 6455 §5.3); the mask is from the run's generator.
pub(crate) fn put(opcode: u8, payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    out.push(0x80 | opcode);
    match u16::try_from(payload.len()) {
        Ok(short @ 0..=125) => out.push(masked | short.to_be_bytes()[1]),
        Ok(middle) => {
            out.push(masked | 126);
            out.extend_from_slice(&middle.to_be_bytes());
        }
        Err(_long) => {
            out.push(masked | 127);
            out.extend_from_slice(&crate::number::count(payload.len()).to_be_bytes());
        }
    }
    let Some(mask) = mask else { return out.extend_from_slice(payload) };
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
}

/// What a stream of frames contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard<'a> {
    /// Bytes of a message; `is_last` ends it.
    Message {
        part: &'a [u8],
        is_last: bool,
    },
    Ping(&'a [u8]),
    Close,
}

/// The peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    head: Vec<u8>,
    frame: Option<Frame>,
    control: Vec<u8>,
    unmasked: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    opcode: u8,
    is_final: bool,
    left: u64,
    mask: Option<[u8; 4]>,
    /// Bytes of the payload so far: the place in the mask.
    at: usize,
}

/// Bytes of a head whose first two are known.
fn head_bytes(second: u8) -> usize {
    let length = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + length + if second & 0x80 == 0 { 0 } else { 4 }
}

impl Reader {
    /// Takes all of `bytes` and tells `heard` what is in them.
    ///
    /// # Errors
    /// When the connection is of no more use.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut heard: impl FnMut(Heard<'_>)) -> Result<(), Broken> {
        let mut rest = bytes;
        loop {
            let Some(mut frame) = self.frame else {
                match self.read_head(&mut rest)? {
                    Some(frame) => self.frame = Some(frame),
                    None => return Ok(()),
                }
                continue;
            };
            let take = usize::try_from(frame.left).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = rest.split_at(take);
            rest = after;
            frame.left -= crate::number::count(take);
            let part = match frame.mask {
                None => part,
                Some(mask) => {
                    self.unmasked.clear();
                    let key = mask.iter().cycle().skip(frame.at % 4);
                    self.unmasked.extend(part.iter().zip(key).map(|(byte, key)| byte ^ key));
                    &self.unmasked
                }
            };
            frame.at += take;
            let is_whole = frame.left == 0;
            match frame.opcode {
                opcode::PING | opcode::PONG | opcode::CLOSE => {
                    self.control.extend_from_slice(part);
                    if is_whole {
                        match frame.opcode {
                            opcode::PING => heard(Heard::Ping(&self.control)),
                            opcode::CLOSE => heard(Heard::Close),
                            _ => {}
                        }
                        self.control.clear();
                    }
                }
                _ => heard(Heard::Message { part, is_last: is_whole && frame.is_final }),
            }
            self.frame = (!is_whole).then_some(frame);
            if !is_whole {
                return Ok(());
            }
        }
    }

    fn read_head(&mut self, rest: &mut &[u8]) -> Result<Option<Frame>, Broken> {
        while let Some((byte, after)) = rest.split_first() {
            self.head.push(*byte);
            *rest = after;
            let &[first, second, ..] = self.head.as_slice() else { continue };
            if self.head.len() < head_bytes(second) {
                continue;
            }
            let mask = if second & 0x80 == 0 { None } else { self.head.last_chunk::<4>().copied() };
            let extended = self.head.get(2..).unwrap_or(&[]);
            let left = match second & 0x7f {
                126 => extended.first_chunk::<2>().map_or(0, |bytes| u64::from(u16::from_be_bytes(*bytes))),
                127 => extended.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes)),
                short => u64::from(short),
            };
            self.head.clear();
            let opcode = first & 0x0f;
            if first & 0x70 != 0 {
                return Err(Broken("reserved bits without an extension"));
            }
            if left > if opcode >= opcode::CLOSE { CONTROL_BYTES_MAX } else { MESSAGE_BYTES_MAX } {
                return Err(Broken("a frame that is too long"));
            }
            return Ok(Some(Frame { opcode, is_final: first & 0x80 != 0, left, mask, at: 0 }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_all_lengths_and_cuts() {
        let mut bytes = Vec::new();
        let lengths = [0usize, 1, 125, 126, 65_535, 65_536];
        for (index, len) in lengths.iter().enumerate() {
            let mask = (index % 2 == 0).then_some([1, 2, 3, 4]);
            put(opcode::BINARY, &vec![b'a'; *len], mask, &mut bytes);
            put(opcode::PING, b"hi", mask, &mut bytes);
        }
        for step in [1, 2, 3, 7, 4096, bytes.len()] {
            let mut reader = Reader::default();
            let (mut found, mut pings, mut sum) = (Vec::new(), 0, 0);
            for part in bytes.chunks(step) {
                reader
                    .feed(part, |heard| match heard {
                        Heard::Message { part, is_last } => {
                            assert!(part.iter().all(|byte| *byte == b'a'));
                            sum += part.len();
                            if is_last {
                                found.push(std::mem::take(&mut sum));
                            }
                        }
                        Heard::Ping(payload) => {
                            assert_eq!(payload, b"hi");
                            pings += 1;
                        }
                        Heard::Close => {}
                    })
                    .expect("good");
            }
            assert_eq!((found.as_slice(), pings), (&lengths[..], 6), "in steps of {step}");
        }
    }

    #[test]
    fn faults() {
        for bytes in [&[0xc1, 0][..], &[0x89, 126, 0, 200], &[0x82, 127, 1, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(Reader::default().feed(bytes, |_| {}).is_err(), "{bytes:?}");
        }
    }
}
