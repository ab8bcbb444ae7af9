//! Sticky sessions in an exchange: the cookie that comes, and the one that goes.
//!
//! The client's cookie is passed on to the backend as it came. A cookie is written only with the response of the
//! endpoint that it stands for: when a retry goes elsewhere, the session stays where it was.

use std::rc::Rc;

use http_balance::Slot;
use http_balance::sticky::{CookieKey, Session};
use http_wire::cookie;
use http_wire::fields::{FieldError, FieldId};
use http_wire::head::Scheme;

use super::Exchange;
use crate::pool::{Cluster, Lease};

/// A cookie to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewCookie {
    session: Session,
    slot: Slot,
}

impl Exchange<'_> {
    /// The endpoint of the request's session, or of a new one. None when the ring has none that takes requests.
    pub(super) fn place(&mut self, cluster: &Rc<Cluster>) -> Option<Lease> {
        let settings = cluster.settings();
        let config = settings.config();
        let sticky = config.sticky.as_deref()?;
        let lines = self.request.head.fields.all(FieldId::Cookie);
        let found = cookie::find(lines, sticky.cookie.as_bytes());
        let read = found.map(|value| Session::decode(value, sticky.cluster, sticky));
        let (session, key) = match read {
            Some(Ok((session, key))) => (Some(session), key),
            Some(Err(fault)) => {
                self.core.stats.borrow_mut().session_cookie_refused(config.stat, fault);
                (None, CookieKey::Current)
            }
            None => (None, CookieKey::Current),
        };
        let (lease, placed) = cluster.place(session, (self.core.random(), self.core.random()))?;
        self.core.stats.borrow_mut().session(config.stat, placed.fate);
        // What stays, but under the key that goes next, is written anew.
        let write = placed.rewrite.or(session.filter(|_| key == CookieKey::Previous));
        self.new_cookie = write.map(|session| NewCookie { session, slot: placed.slot });
        Some(lease)
    }

    /// Puts the cookie on the response of its endpoint.
    pub(super) fn write_cookie(&mut self, lease: &Lease) -> Result<(), FieldError> {
        let Some(NewCookie { session, slot }) = self.new_cookie.take() else { return Ok(()) };
        // By the config that the session was placed by.
        let Some(sticky) = lease.settings.config().sticky.as_deref().filter(|_| lease.slot == slot) else {
            return Ok(());
        };
        let Some(value) = session.encode(sticky.cluster, sticky) else { return Ok(()) };
        let mut line = self.core.scratch.borrow_mut();
        line.clear();
        line.extend_from_slice(sticky.cookie.as_bytes());
        line.push(b'=');
        line.extend_from_slice(&value);
        line.extend_from_slice(sticky.attributes.as_bytes());
        if self.conn.scheme == Scheme::Https {
            line.extend_from_slice(b"; Secure");
        }
        self.request.response.fields.push(FieldId::SetCookie, &line)
    }
}
