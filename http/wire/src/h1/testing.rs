//! Helpers of this module's tests.

use std::fmt;

/// xorshift64*: small, and the same on every machine. Prints the seed that a failing run has to be started
/// with.
pub(super) struct Random {
    seed: u64,
    state: u64,
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {:#x}", self.seed)
    }
}

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, state: seed | 1 }
    }

    pub(super) const fn word(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.word() >> 33).expect("31 bits") % bound
    }
}
