//! Keys stay where they are when an endpoint goes.

use http_balance::mix;
use http_balance::ring::{Member, Ring, VIRTUAL_NODES_DEFAULT};

use crate::fleet::id;

const KEYS: u64 = 300_000;

#[test]
fn removing_one_of_twenty_moves_a_twentieth_over_all_others() {
    let members: Vec<Member> = (0..20).map(|at| Member { id: id(at), weight: 1 }).collect();
    let owners = |members: &[Member]| -> Vec<Member> {
        let ring = Ring::new(members, VIRTUAL_NODES_DEFAULT);
        (0..KEYS).map(|key| members[ring.owner(mix(key, 1)).unwrap()]).collect()
    };
    let before = owners(&members);
    for removed in 0..members.len() {
        let mut left = members.clone();
        left.remove(removed);
        let mut heirs = std::collections::HashMap::<Member, u64>::new();
        let mut moved = 0;
        for (old, new) in before.iter().zip(owners(&left)) {
            if *old != new {
                assert_eq!(*old, members[removed], "only its own keys move");
                moved += 1;
                *heirs.entry(new).or_default() += 1;
            }
        }
        let permille_of_keys = moved * 1000 / KEYS;
        assert!(
            (45..=55).contains(&permille_of_keys),
            "without {removed}: {permille_of_keys} in 1000 keys moved"
        );
        assert_eq!(heirs.len(), 19, "without {removed}: spread over all others");
        let most = heirs.values().max().unwrap();
        assert!(*most < moved / 19 * 2, "without {removed}: one heir got {most} of {moved}");
    }
}
