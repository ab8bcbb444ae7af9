//! A file of requests: one a line, `METHOD PATH [BODY]`, where BODY is the rest of the line or `@FILE`.
//!
//! Empty lines and lines that begin with `#` are skipped. Paths and bodies may hold placeholders.

use super::{Request, Text};

/// Requests in one file.
const REQUESTS_MAX: usize = 100_000;

/// Reads the text of a list; `read` gets the file of a body.
///
/// # Errors
/// The line and what is wrong with it.
pub(crate) fn read_list(
    text: &str,
    authority: &str,
    headers: &[(String, Text)],
    mut read: impl FnMut(&str) -> Result<Vec<u8>, String>,
) -> Result<Vec<Request>, String> {
    let mut list = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if list.len() == REQUESTS_MAX {
            return Err(format!("line {number}: more than {REQUESTS_MAX} requests"));
        }
        let at = |why: String| format!("line {number}: {why}");
        let mut words = line.splitn(3, ' ');
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Err(at(format!("{line}: want METHOD PATH [BODY]")));
        };
        if !path.starts_with('/') {
            return Err(at(format!("path {path} does not begin with /")));
        }
        if !http_wire::token::is_token(method.as_bytes()) {
            return Err(at(format!("{method} is no method")));
        }
        let path = Text::parse(path.as_bytes()).map_err(at)?;
        let body = match words.next().map(str::trim) {
            None | Some("") => Text::default(),
            Some(body) => match body.strip_prefix('@') {
                Some(file) => Text::literal(&read(file).map_err(at)?),
                None => Text::parse(body.as_bytes()).map_err(at)?,
            },
        };
        list.push(Request::new(method, authority, path, headers, body));
    }
    if list.is_empty() { Err("no requests in it".to_owned()) } else { Ok(list) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_requests() {
        let text = "# two\nGET /a/{seq}\n\nPOST /b {\"x\": 1}\nPUT /c @f";
        let read = |file: &str| if file == "f" { Ok(b"bytes".to_vec()) } else { Err("no file".to_owned()) };
        let list = read_list(text, "h", &[], read).expect("good");
        let methods: Vec<_> = list.iter().map(|r| r.method_token.as_str()).collect();
        assert_eq!(methods, ["GET", "POST", "PUT"]);
        assert_eq!(list[1].body.fixed(), Some(&b"{\"x\": 1}"[..]));
        assert_eq!(list[2].body.fixed(), Some(&b"bytes"[..]));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, fault) in [
            ("GET", "line 1"),
            ("GET /\nGET x", "line 2: path x"),
            ("G@T /", "line 1: G@T"),
            ("GET /{rand:2-1}", "line 1: {rand:2-1}"),
            ("PUT /a @gone", "line 1: no file"),
            ("# nothing", "no requests"),
        ] {
            let error = read_list(text, "h", &[], |_| Err("no file".to_owned())).expect_err(text);
            assert!(error.contains(fault), "{error}");
        }
    }
}
