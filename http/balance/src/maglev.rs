//! Maglev hashing (Eisenbud 2016): a table of rows, one look-up a key, more even than a ring, a little less stable.
//!
//! Members take rows in turn, each along a permutation of its own; a heavier one takes more turns, every one at least
//! the first. Members are taken in order of identity, so the table does not depend on theirs (C34).

use crate::hash::mix;
use crate::ring::Member;
use crate::time::stored;

/// Rows of a table: prime, and at least a hundred times the endpoints for shares within a per cent.
pub const ROWS_DEFAULT: u32 = 65_537;

const FREE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub struct Maglev {
    /// Index into the members.
    rows: Vec<u32>,
}

impl Maglev {
    /// A table over `members`, at most as many as rows, whose indices it answers with. `rows` must be prime, so that
    /// every step visits every row.
    #[must_use]
    pub fn new(members: &[Member], rows: u32) -> Self {
        if members.is_empty() {
            return Self { rows: Vec::new() };
        }
        let heaviest = members.iter().map(|member| u64::from(member.weight)).max().unwrap_or(1);
        let row_count = u64::from(rows);
        let mut walks: Vec<Walk> = members
            .iter()
            .enumerate()
            .map(|(index, member)| Walk {
                id: member.id.0,
                index: stored(index),
                next: mix(member.id.0, 1) % row_count,
                skip: mix(member.id.0, 2) % (row_count - 1) + 1,
                weight: u64::from(member.weight),
                credit: heaviest,
            })
            .collect();
        walks.sort_unstable_by_key(|walk| walk.id);
        let mut table = vec![FREE; rows as usize];
        let mut left = rows;
        'full: loop {
            for walk in &mut walks {
                if walk.credit < heaviest {
                    walk.credit += walk.weight;
                    continue;
                }
                walk.credit = walk.credit - heaviest + walk.weight;
                walk.take(&mut table, row_count);
                left -= 1;
                if left == 0 {
                    break 'full;
                }
            }
        }
        Self { rows: table }
    }

    /// Index of the member that a key's hash belongs to. None only of an empty table.
    #[inline]
    #[must_use]
    pub fn owner(&self, key: u64) -> Option<usize> {
        let row = mix(key, 0).checked_rem(u64::try_from(self.rows.len()).ok()?)?;
        self.rows.get(usize::try_from(row).ok()?).map(|index| *index as usize)
    }
}

/// By trial division; tables are small.
pub(crate) fn is_prime(number: u32) -> bool {
    number > 1 && (2..=number.isqrt()).all(|divisor| !number.is_multiple_of(divisor))
}

/// One member on its way through the rows.
struct Walk {
    id: u64,
    index: u32,
    next: u64,
    skip: u64,
    weight: u64,
    /// Worth a row when it reaches the heaviest weight; full at first, so that everybody gets one.
    credit: u64,
}

impl Walk {
    fn take(&mut self, table: &mut [u32], rows: u64) {
        loop {
            let row = usize::try_from(self.next).unwrap_or(0);
            self.next = (self.next + self.skip) % rows;
            if table[row] == FREE {
                table[row] = self.index;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::EndpointId;
    use crate::ring::tests::{assert_shares, digest, listed_otherwise, members, owners};

    fn maglev_owners(members: &[Member], keys: u64) -> Vec<EndpointId> {
        owners(members, &Maglev::new(members, ROWS_DEFAULT), Maglev::owner, keys)
    }

    #[test]
    fn the_table_is_fixed_for_ever() {
        assert_eq!(
            digest(&maglev_owners(&members(&[1, 1, 2, 3, 1, 1, 5, 1, 1, 4]), 1000)),
            0x8c1c_4b77_df43_8ff1
        );
    }

    #[test]
    fn order_and_unit_of_weights_do_not_count() {
        let listed = members(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let other = listed_otherwise(&listed);
        assert_eq!(maglev_owners(&listed, 10_000), maglev_owners(&other, 10_000));
    }

    #[test]
    fn shares_follow_the_weights_closely() {
        let members = members(&[1, 1, 2, 4, 4]);
        assert_shares(&members, &maglev_owners(&members, 120_000), 4);
    }

    #[test]
    fn a_removed_member_moves_few_others() {
        let before = members(&[1; 20]);
        for removed in 0..20 {
            let mut after = before.clone();
            after.remove(removed);
            let pairs = maglev_owners(&before, 40_000).into_iter().zip(maglev_owners(&after, 40_000));
            let others = pairs.filter(|(old, new)| old != new && *old != before[removed].id).count();
            assert!(others <= 40_000 * 2 / 20, "without {removed}: {others}");
        }
    }

    #[test]
    fn the_lightest_still_has_keys_and_the_empty_table_none() {
        let members = members(&[1, 1_000_000]);
        let table = Maglev::new(&members, ROWS_DEFAULT);
        assert!(table.rows.contains(&0));
        assert_eq!(Maglev::new(&[], ROWS_DEFAULT).owner(1), None);
    }
}
