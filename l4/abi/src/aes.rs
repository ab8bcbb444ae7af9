//! The AES-128 decryption schedule that `l4/xdp/aes.h` uses (FIPS 197, section 5.2 and the equivalent inverse cipher of
//! section 5.3.5). Run when a configuration is fed, never by packet; the S-box is computed, not stored.

/// Words of the schedule: eleven round keys of four.
pub(crate) const WORDS: usize = 44;

/// The schedule in the order of decryption, each column as a big-endian number in the host's order.
pub(crate) fn decryption_schedule(key: &[u8; 16]) -> [u32; WORDS] {
    let forward = schedule(key);
    let mut reversed = [0; WORDS];
    for (round, (to, from)) in
        reversed.as_chunks_mut::<4>().0.iter_mut().zip(forward.as_chunks::<4>().0.iter().rev()).enumerate()
    {
        for (to, from) in to.iter_mut().zip(from) {
            // The first and the last round key are used as they are.
            *to = if round == 0 || round == 10 { *from } else { unmixed(*from) };
        }
    }
    reversed
}

fn schedule(key: &[u8; 16]) -> [u32; WORDS] {
    let mut words = [0_u32; WORDS];
    for (word, bytes) in words.iter_mut().zip(key.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    let mut constant = 1;
    for index in 4..WORDS {
        let mut word = words[index - 1];
        if index % 4 == 0 {
            let substituted = word.rotate_left(8).to_be_bytes().map(substitute);
            word = u32::from_be_bytes(substituted) ^ u32::from(constant) << 24;
            constant = product(constant, 2);
        }
        words[index] = words[index - 4] ^ word;
    }
    words
}

/// InvMixColumns of one column.
fn unmixed(column: u32) -> u32 {
    let [a, b, c, d] = column.to_be_bytes();
    let row = |a, b, c, d| product(a, 14) ^ product(b, 11) ^ product(c, 13) ^ product(d, 9);
    u32::from_be_bytes([row(a, b, c, d), row(b, c, d, a), row(c, d, a, b), row(d, a, b, c)])
}

/// The S-box: the inverse in GF(2⁸), then the affine map.
fn substitute(byte: u8) -> u8 {
    let inverse = (1..=u8::MAX).find(|candidate| product(byte, *candidate) == 1).unwrap_or(0);
    (1..5).fold(inverse, |sum, bits| sum ^ inverse.rotate_left(bits)) ^ 0x63
}

/// Multiplication in GF(2⁸).
fn product(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b > 0 {
        if b & 1 == 1 {
            sum ^= a;
        }
        a = a << 1 ^ if a & 0x80 == 0 { 0 } else { 0x1b };
        b >>= 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197, appendix A.1.
    #[test]
    fn the_schedule_is_the_standard_one() {
        let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();
        let words = schedule(&key);
        assert_eq!(words[4..8], [0xa0fa_fe17, 0x8854_2cb1, 0x23a3_3939, 0x2a6c_7605]);
        assert_eq!(words[40..], [0xd014_f9a8, 0xc9ee_2589, 0xe13f_0cc8, 0xb663_0ca6]);
        let reversed = decryption_schedule(&key);
        assert_eq!(reversed[..4], words[40..]);
        assert_eq!(reversed[40..], words[..4]);
    }
}
