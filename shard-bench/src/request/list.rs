//! A file of requests: one a line, `METHOD PATH [BODY]`, where BODY is the rest of the line or `@FILE`.
//!
//! A line that begins with a blank is a header of the request above it, `NAME: VALUE`. Empty lines and lines that begin
//! with `#` are skipped. Paths, values and bodies may hold placeholders.

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
    let mut list: Vec<Parts<'_>> = Vec::new();
    for (number, written) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let line = written.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = |why: String| format!("line {number}: {why}");
        if written.starts_with([' ', '\t']) {
            let above =
                list.last_mut().ok_or_else(|| at("a header without a request above it".to_owned()))?;
            above.headers.push(header(line).map_err(at)?);
            continue;
        }
        if list.len() == REQUESTS_MAX {
            return Err(format!("line {number}: more than {REQUESTS_MAX} requests"));
        }
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
        list.push(Parts { method, path, headers: headers.to_vec(), body });
    }
    if list.is_empty() {
        return Err("no requests in it".to_owned());
    }
    let request =
        |parts: Parts<'_>| Request::new(parts.method, authority, parts.path, &parts.headers, parts.body);
    Ok(list.into_iter().map(request).collect())
}

/// A request whose headers may go on.
struct Parts<'a> {
    method: &'a str,
    path: Text,
    headers: Vec<(String, Text)>,
    body: Text,
}

/// `NAME: VALUE`, the name in lower case.
fn header(line: &str) -> Result<(String, Text), String> {
    let (name, value) = line.split_once(':').ok_or_else(|| format!("{line}: want NAME: VALUE"))?;
    if !http_wire::token::is_token(name.as_bytes()) {
        return Err(format!("{name} is no header name"));
    }
    let value = value.trim().as_bytes();
    if !http_wire::token::is_field_value(value) {
        return Err(format!("the value of {name} holds a control character"));
    }
    Ok((name.to_ascii_lowercase(), Text::parse(value)?))
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
    fn headers_stand_below_their_request() {
        let common = [("x-all".to_owned(), Text::literal(b"1"))];
        let text = "GET /a\n  X-One: a: b\n\n# more\n\tx-two: {seq}\nGET /b\n";
        let list = read_list(text, "h", &common, |_| Err("no file".to_owned())).expect("good");
        let names = |request: &Request| -> Vec<String> {
            request.headers.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(names(&list[0]), ["x-all", "x-one", "x-two"]);
        assert_eq!(list[0].headers[1].1.fixed(), Some(&b"a: b"[..]));
        assert_eq!(names(&list[1]), ["x-all"]);
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
            ("  x: 1", "line 1: a header without a request"),
            ("GET /\n  x", "line 2: x: want NAME: VALUE"),
            ("GET /\n  x y: 1", "line 2: x y is no header name"),
            ("GET /\n  x: {rand:2-1}", "line 2: {rand:2-1}"),
        ] {
            let error = read_list(text, "h", &[], |_| Err("no file".to_owned())).expect_err(text);
            assert!(error.contains(fault), "{error}");
        }
    }
}
