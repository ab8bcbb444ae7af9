//! Allow and deny lists by client address.
//!
//! A denied address stays denied whatever the allow list says. Without an allow list everyone who is not
//! denied may pass; with one, only those on it. Called by `conn` (listener rules) and by the chain (route
//! rules), always with the one client address of [`crate::client_addr`].

use std::net::IpAddr;

use crate::cidr::CidrSet;

/// What the lists say about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Allowed,
    Denied,
}

/// The two lists of one listener or route. The default lets everyone pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    allow: Option<CidrSet>,
    deny: CidrSet,
}

impl AddressRules {
    /// `allow: None` means no allow list; an empty allow list lets nobody pass.
    pub const fn new(allow: Option<CidrSet>, deny: CidrSet) -> Self {
        Self { allow, deny }
    }

    /// O(log n) in the number of prefixes.
    pub fn check(&self, client: IpAddr) -> Access {
        if self.deny.contains(client) {
            return Access::Denied;
        }
        match &self.allow {
            Some(allow) if !allow.contains(client) => Access::Denied,
            Some(_) | None => Access::Allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cidr::Cidr;

    fn set(texts: &[&str]) -> CidrSet {
        texts.iter().map(|t| t.parse::<Cidr>().unwrap()).collect()
    }

    type List = &'static [&'static str];

    #[test]
    fn deny_beats_allow_and_an_allow_list_excludes_the_rest() {
        let (inner, office, rest) = ("10.1.0.9", "10.9.0.9", "192.0.2.1");
        let table: [(Option<List>, List, [Access; 3]); 6] = [
            (None, &[], [Access::Allowed; 3]),
            (None, &["10.1.0.0/16"], [Access::Denied, Access::Allowed, Access::Allowed]),
            (Some(&["10.0.0.0/8"]), &[], [Access::Allowed, Access::Allowed, Access::Denied]),
            (Some(&["10.0.0.0/8"]), &["10.1.0.0/16"], [Access::Denied, Access::Allowed, Access::Denied]),
            (Some(&["10.1.0.0/16"]), &["10.0.0.0/8"], [Access::Denied; 3]),
            (Some(&[]), &[], [Access::Denied; 3]),
        ];
        for (allow, deny, expected) in table {
            let rules = AddressRules::new(allow.map(set), set(deny));
            let found = [inner, office, rest].map(|a| rules.check(a.parse().unwrap()));
            assert_eq!(found, expected, "allow {allow:?} deny {deny:?}");
            let mapped = [inner, office, rest].map(|a| rules.check(format!("::ffff:{a}").parse().unwrap()));
            assert_eq!(mapped, expected, "mapped, allow {allow:?} deny {deny:?}");
        }
    }
}
