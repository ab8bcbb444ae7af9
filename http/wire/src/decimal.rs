//! Decimal digits of a number without allocation.

/// The digits of one number.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    digits: [u8; Self::DIGITS_MAX],
    at: usize,
}

impl Decimal {
    /// Digits of `u64::MAX`.
    pub const DIGITS_MAX: usize = 20;

    pub fn new(number: u64) -> Self {
        let mut digits = [b'0'; Self::DIGITS_MAX];
        let mut at = Self::DIGITS_MAX;
        let mut rest = number;
        loop {
            at -= 1;
            // A remainder by ten is one digit.
            digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                return Self { digits, at };
            }
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.digits.get(self.at..).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_standard_library() {
        for number in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX - 1, u64::MAX] {
            assert_eq!(Decimal::new(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
