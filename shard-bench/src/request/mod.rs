//! What is sent: requests made from templates, version neutral until they are written.
//!
//! A request without placeholders is prepared once as HTTP/1.1 bytes; one with placeholders is filled for each
//! sending. Called by the protocol modules; made by the command line and read-only afterwards.

mod list;
mod text;
mod url;

pub(crate) use list::read_list;
pub(crate) use text::{Text, Values, decimal};
pub(crate) use url::{Scheme, Url};

use http_wire::head::Method;

/// One kind of request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) method_token: String,
    pub(crate) authority: String,
    pub(crate) path: Text,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, Text)>,
    pub(crate) body: Text,
    /// The whole HTTP/1.1 message, when it is always the same.
    prepared: Option<Vec<u8>>,
}

impl Request {
    pub(crate) fn new(
        method_token: &str,
        authority: &str,
        path: Text,
        headers: &[(String, Text)],
        body: Text,
    ) -> Self {
        let mut this = Self {
            method: Method::from_token(method_token.as_bytes()),
            method_token: method_token.to_owned(),
            authority: authority.to_owned(),
            path,
            headers: headers.to_vec(),
            body,
            prepared: None,
        };
        let is_fixed = this.path.fixed().is_some()
            && this.body.fixed().is_some()
            && this.headers.iter().all(|(_, value)| value.fixed().is_some());
        if is_fixed {
            let mut bytes = Vec::new();
            this.fill_h1(&mut Values::new(0, 0, 1), &mut Vec::new(), &mut bytes);
            this.prepared = Some(bytes);
        }
        this
    }

    /// Appends the request as HTTP/1.1. `scratch` holds the body while its length is found out.
    pub(crate) fn write_h1(&self, values: &mut Values, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        match &self.prepared {
            Some(bytes) => out.extend_from_slice(bytes),
            None => self.fill_h1(values, scratch, out),
        }
    }

    fn fill_h1(&self, values: &mut Values, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        scratch.clear();
        self.body.fill(values, scratch);
        out.extend_from_slice(self.method_token.as_bytes());
        out.push(b' ');
        self.path.fill(values, out);
        out.extend_from_slice(b" HTTP/1.1\r\n");
        if !self.has_header("host") {
            out.extend_from_slice(b"host: ");
            out.extend_from_slice(self.authority.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        for (name, value) in &self.headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            value.fill(values, out);
            out.extend_from_slice(b"\r\n");
        }
        if self.announces_length(scratch.len()) {
            out.extend_from_slice(b"content-length: ");
            decimal(crate::number::count(scratch.len()), out);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.append(scratch);
    }

    /// Whether its method asks for no change (RFC 9110 §9.2.1), so that it may arrive twice.
    pub(crate) fn is_safe(&self) -> bool {
        matches!(self.method, Method::Get | Method::Head | Method::Options)
    }

    fn has_header(&self, wanted: &str) -> bool {
        self.headers.iter().any(|(name, _)| name == wanted)
    }

    /// RFC 9110 §8.6: a method that anticipates content says its length even when it is zero.
    pub(crate) fn announces_length(&self, body_bytes: usize) -> bool {
        let anticipates = matches!(self.method, Method::Post | Method::Put | Method::Patch);
        (anticipates || body_bytes > 0) && !self.has_header("content-length")
    }
}

/// The requests of a run and their order.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    pub(crate) list: Vec<Request>,
    pub(crate) is_shuffled: bool,
}

impl Requests {
    /// The place of the next request, `sent` after the first.
    pub(crate) fn pick(&self, sent: u64, values: &mut Values) -> usize {
        match crate::number::count(self.list.len()) {
            0 | 1 => 0,
            len if self.is_shuffled => crate::number::length(values.below(len)),
            len => crate::number::length(sent % len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(request: &Request) -> String {
        let mut out = Vec::new();
        request.write_h1(&mut Values::new(1, 0, 1), &mut Vec::new(), &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn fixed_and_filled_requests_have_one_form() {
        let text = |text: &str| Text::parse(text.as_bytes()).expect("good");
        let headers = [("x-n".to_owned(), text("{seq}"))];
        let get = Request::new("GET", "a:1", text("/x"), &[], Text::default());
        assert_eq!(written(&get), "GET /x HTTP/1.1\r\nhost: a:1\r\n\r\n");
        let post = Request::new("POST", "a", text("/x"), &headers, text("n={seq}"));
        assert_eq!(written(&post), "POST /x HTTP/1.1\r\nhost: a\r\nx-n: 0\r\ncontent-length: 3\r\n\r\nn=0");
        assert!(get.is_safe() && !post.is_safe());
        let empty = Request::new("PUT", "a", text("/x"), &[], Text::default());
        assert!(written(&empty).contains("content-length: 0\r\n"));
        let host = [("host".to_owned(), text("b"))];
        let other = Request::new("GET", "a", text("/"), &host, Text::default());
        assert_eq!(written(&other), "GET / HTTP/1.1\r\nhost: b\r\n\r\n");
    }
}
