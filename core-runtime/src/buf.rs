//! Byte buffers of two sizes, pooled per core. Who waits holds none; who reads takes one.
//!
//! Buffers are zeroed once, when the pool makes them. The pool is bounded: past `buffers_max` live buffers
//! [`Buf::try_take`] says no, which callers turn into back-pressure or a counted refusal.

use std::cell::RefCell;

/// Bytes in one buffer.
pub const BUF_BYTES: usize = 16 * 1024;
/// Bytes in a buffer for bodies that keep filling ordinary ones: a quarter of the system calls.
pub const BULK_BYTES: usize = 64 * 1024;
/// Free bulk buffers kept; only as many bodies are in bulk transfer at one moment.
const BULK_IDLE_MAX: usize = 64;

struct Pool {
    free: Vec<Box<[u8]>>,
    free_bulk: Vec<Box<[u8]>>,
    live: usize,
    live_max: usize,
    idle_max: usize,
    refused: u64,
    scratch: Vec<Vec<u8>>,
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool {
            free: Vec::new(),
            free_bulk: Vec::new(),
            live: 0,
            live_max: usize::MAX,
            idle_max: 256,
            refused: 0,
            scratch: Vec::new(),
        })
    };
}

/// Sets this core's bounds: buffers alive at once, and free ones kept for later.
pub fn configure(live_max: usize, idle_max: usize) {
    POOL.with(|pool| {
        let mut pool = pool.borrow_mut();
        pool.live_max = live_max;
        pool.idle_max = idle_max;
    });
}

/// Buffers in use on this core, and takes that were refused since the start.
pub fn usage() -> (usize, u64) {
    POOL.with(|pool| {
        let pool = pool.borrow();
        (pool.live, pool.refused)
    })
}

/// A pooled buffer: `filled` bytes between the read and the write position.
#[derive(Debug)]
pub struct Buf {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buf {
    /// An empty buffer, or `None` when the core's bound is reached.
    pub fn try_take() -> Option<Self> {
        Self::take_from(|pool| pool.free.pop().unwrap_or_else(|| zeroed(BUF_BYTES)))
    }

    /// An empty buffer of [`BULK_BYTES`], or `None` when the core's bound is reached.
    pub fn try_take_bulk() -> Option<Self> {
        Self::take_from(|pool| pool.free_bulk.pop().unwrap_or_else(|| zeroed(BULK_BYTES)))
    }

    fn take_from(take: impl FnOnce(&mut Pool) -> Box<[u8]>) -> Option<Self> {
        POOL.with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.live >= pool.live_max {
                pool.refused += 1;
                return None;
            }
            pool.live += 1;
            Some(Self { bytes: take(&mut pool), start: 0, end: 0 })
        })
    }

    /// A buffer of at least `bytes` for what is larger than the pool's size, such as a long head. It counts
    /// towards the bound, but is freed and not kept when it is dropped.
    pub fn try_take_large(bytes: usize) -> Option<Self> {
        if bytes <= BUF_BYTES { Self::try_take() } else { Self::take_from(|_| zeroed(bytes)) }
    }

    /// The bytes that were written and not yet consumed.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The same bytes, to be changed in place.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The room behind the filled bytes.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    pub fn spare_len(&self) -> usize {
        self.bytes.len() - self.end
    }

    /// Takes `count` bytes of the room as filled.
    pub fn commit(&mut self, count: usize) {
        assert!(count <= self.spare_len(), "committed more than there is room");
        self.end += count;
    }

    /// Drops `count` bytes from the front.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "consumed more than is filled");
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Keeps only the first `count` filled bytes.
    pub fn truncate(&mut self, count: usize) {
        self.end = self.end.min(self.start + count);
    }

    /// Moves the filled bytes to the front, so that all room is behind them.
    pub fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Copies as much of `bytes` as there is room for; how much that was.
    pub fn extend(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.spare_len());
        self.spare_mut()[..count].copy_from_slice(&bytes[..count]);
        self.commit(count);
        count
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        // At thread exit the pool may be gone first; the bytes are then simply freed.
        let _gone: Result<(), std::thread::AccessError> = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            pool.live -= 1;
            match bytes.len() {
                BUF_BYTES if pool.free.len() < pool.idle_max => pool.free.push(bytes),
                BULK_BYTES if pool.free_bulk.len() < BULK_IDLE_MAX => pool.free_bulk.push(bytes),
                _ => {}
            }
        });
    }
}

fn zeroed(bytes: usize) -> Box<[u8]> {
    vec![0; bytes].into_boxed_slice()
}

/// A growable byte vector that goes back to the core's pool, for bytes made here: heads, frames, ciphertext.
#[derive(Debug, Default)]
pub struct Scratch(Vec<u8>);

/// A vector that grew beyond this is freed instead of kept.
const SCRATCH_KEPT_BYTES_MAX: usize = 64 * 1024;

impl Scratch {
    /// An empty vector, with room from earlier use when there is one.
    pub fn take() -> Self {
        Self(POOL.with(|pool| pool.borrow_mut().scratch.pop()).unwrap_or_default())
    }
}

impl std::ops::Deref for Scratch {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl std::ops::DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0);
        if bytes.capacity() == 0 || bytes.capacity() > SCRATCH_KEPT_BYTES_MAX {
            return;
        }
        bytes.clear();
        // At thread exit the pool may be gone first; the bytes are then simply freed.
        let _gone: Result<(), std::thread::AccessError> = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.scratch.len() < pool.idle_max {
                pool.scratch.push(bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_the_bound_holds() {
        configure(2, 1);
        let first = Buf::try_take().expect("below the bound");
        let second = Buf::try_take().expect("below the bound");
        assert!(Buf::try_take().is_none(), "two is the bound");
        assert_eq!(usage(), (2, 1));
        drop(first);
        drop(second);
        assert_eq!(usage().0, 0);
        let again = Buf::try_take().expect("room again");
        assert!(again.is_empty(), "a recycled buffer starts empty");
    }

    #[test]
    fn positions_follow_the_bytes() {
        configure(8, 8);
        let mut buf = Buf::try_take().expect("room");
        assert_eq!(buf.extend(b"hello world"), 11);
        buf.consume(6);
        assert_eq!(buf.filled(), b"world");
        buf.compact();
        assert_eq!(buf.spare_len(), BUF_BYTES - 5);
        buf.truncate(2);
        assert_eq!(buf.filled(), b"wo");
        buf.consume(2);
        assert_eq!(buf.spare_len(), BUF_BYTES, "an empty buffer has all its room");
    }
}
