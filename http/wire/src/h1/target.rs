//! Request targets: the four forms of RFC 9112 §3.2, split and stored, never normalised.

use super::RequestError;
use crate::authority;
use crate::head::{Method, RequestHead, Scheme};
use crate::token::{BLOCK_BYTES, Block, first_bits};

/// Stores path and query of the target, `len` bytes at the start of `text`, in `head` and returns the authority of an absolute-form target with the
/// scheme that it is for. `head.method` is set.
///
/// # Errors
/// `BadTarget` for every form that the method does not allow and for bytes that no target has; `BadHost` for
/// an authority that is none; `ConnectUnsupported` for CONNECT, whose form is not looked at.
pub(super) fn store_target<'a>(
    text: &'a [u8],
    len: usize,
    head: &mut RequestHead,
) -> Result<Option<(&'a [u8], Scheme)>, RequestError> {
    if head.method == Method::Connect {
        return Err(RequestError::ConnectUnsupported);
    }
    let query_at = check_target(text, len)?;
    let target = text.get(..len).unwrap_or(text);
    match target {
        // RFC 9112 §3.2.1.
        [b'/', ..] => {
            head.set_target(target, query_at).or(Err(RequestError::HeadTooLarge))?;
            Ok(None)
        }
        // RFC 9112 §3.2.4.
        b"*" if head.method == Method::Options => store_path(head, b"*").map(|()| None),
        _ => store_absolute_form(target, query_at, head).map(Some),
    }
}

/// Refuses blanks, bytes from 0x7f on and `#` (RFC 9112 §3.2 with RFC 3986): a fragment never leaves a client
/// (RFC 9110 §7.1), and what it means in a target is anybody's guess. Returns where the first `?` is.
fn check_target(text: &[u8], len: usize) -> Result<Option<usize>, RequestError> {
    let mut query_at = None;
    let mut at = 0;
    while at < len {
        let block = Block::at(text, at);
        let here = first_bits(len - at);
        if block.not_in_target() & here != 0 {
            return Err(RequestError::BadTarget);
        }
        let marks = block.find(b'?') & here;
        if query_at.is_none() && marks != 0 {
            query_at = Some(at + marks.trailing_zeros() as usize);
        }
        at += BLOCK_BYTES;
    }
    Ok(query_at)
}

/// RFC 9112 §3.2.2. Only http and https are proxied; other schemes and authority-form (RFC 9112 §3.2.3, for
/// CONNECT only) end here.
fn store_absolute_form<'a>(
    target: &'a [u8],
    query_at: Option<usize>,
    head: &mut RequestHead,
) -> Result<(&'a [u8], Scheme), RequestError> {
    let (rest, scheme) = strip_scheme(target).ok_or(RequestError::BadTarget)?;
    let authority_len = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path_and_query) = rest.split_at(authority_len);
    authority::parse(authority).or(Err(RequestError::BadHost))?;
    match path_and_query {
        // RFC 9112 §3.2.4: an OPTIONS for the whole server on its last hop.
        [] if head.method == Method::Options => store_path(head, b"*")?,
        [] => store_path(head, b"/")?,
        [b'?', query @ ..] => {
            store_path(head, b"/")?;
            head.set_query(Some(query)).or(Err(RequestError::HeadTooLarge))?;
        }
        origin_form => {
            let skipped = target.len() - origin_form.len();
            let query_at = query_at.and_then(|at| at.checked_sub(skipped));
            head.set_target(origin_form, query_at).or(Err(RequestError::HeadTooLarge))?;
        }
    }
    Ok((authority, scheme))
}

fn store_path(head: &mut RequestHead, path: &[u8]) -> Result<(), RequestError> {
    head.set_path(path).or(Err(RequestError::HeadTooLarge))
}

fn strip_scheme(target: &[u8]) -> Option<(&[u8], Scheme)> {
    let forms: [(&[u8], Scheme); 2] = [(b"http://", Scheme::Http), (b"https://", Scheme::Https)];
    forms.into_iter().find_map(|(prefix, scheme)| {
        let (start, rest) = target.split_at_checked(prefix.len())?;
        // RFC 3986 §3.1: schemes are case-insensitive.
        start.eq_ignore_ascii_case(prefix).then_some((rest, scheme))
    })
}
