//! Requests to blocks of HPACK fields, as an ordinary client sends them: a field that stays the same is put into the
//! peer's table the first time and is one or two bytes from then on.
//!
//! Nothing is ever evicted: when the table is full, further fields go as literals. Invariant: `entries[f]` is the
//! number of the table's entry for fixed field `f`, counted from the first one ever inserted.

use http_wire::h2::hpack::{
    ENTRY_OVERHEAD_BYTES, STATIC_LEN, TABLE_BYTES_MAX, put_integer, put_string, static_index,
    static_index_of_name,
};

use crate::number::length;
use crate::plan::Plan;
use crate::request::{Request, Text, Values, decimal};

/// A field of a request.
#[derive(Debug)]
enum Field {
    /// Entry of the static table.
    Static(usize),
    /// Always the same: place in [`Fields::fixed`].
    Fixed(usize),
    /// Filled each time.
    Filled { name: String, value: Text },
    /// The length of the body, when it is filled each time.
    Length,
}

/// A field that is always the same.
#[derive(Debug)]
struct Fixed {
    name: String,
    value: Vec<u8>,
}

/// The fields of all requests of a run; one for each core.
#[derive(Debug)]
pub(crate) struct Fields {
    requests: Vec<Vec<Field>>,
    fixed: Vec<Fixed>,
    /// By request: whether its block can be kept when its fields are in the table.
    is_fixed: Vec<bool>,
}

impl Fields {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut this = Self { requests: Vec::new(), fixed: Vec::new(), is_fixed: Vec::new() };
        for request in &plan.target.requests.list {
            let scheme = plan.target.scheme.as_str();
            let fields = this.fields_of(request, scheme);
            this.is_fixed
                .push(fields.iter().all(|field| matches!(field, Field::Static(_) | Field::Fixed(_))));
            this.requests.push(fields);
        }
        this
    }

    fn fields_of(&mut self, request: &Request, scheme: &str) -> Vec<Field> {
        let host = request.headers.iter().find(|(name, _)| name == "host");
        let authority =
            host.map_or_else(|| Text::literal(request.authority.as_bytes()), |(_, value)| value.clone());
        let mut fields = vec![
            self.field(":method", &Text::literal(request.method_token.as_bytes())),
            self.field(":scheme", &Text::literal(scheme.as_bytes())),
            self.field(":authority", &authority),
            self.field(":path", &request.path),
        ];
        // Fields of the connection have no place here (RFC 9113 §8.2.2).
        let is_hop = |name: &str| {
            matches!(name, "host" | "connection" | "keep-alive" | "upgrade" | "transfer-encoding")
        };
        for (name, value) in request.headers.iter().filter(|(name, _)| !is_hop(name)) {
            fields.push(self.field(name, value));
        }
        let is_grpc = request.headers.iter().any(|(name, value)| {
            name == "content-type"
                && value.fixed().is_some_and(|value| value.starts_with(b"application/grpc"))
        });
        if is_grpc {
            return fields;
        }
        match request.body.fixed() {
            Some(body) if request.announces_length(body.len()) => {
                let mut digits = Vec::new();
                decimal(crate::number::count(body.len()), &mut digits);
                fields.push(self.field("content-length", &Text::literal(&digits)));
            }
            Some(_) => {}
            None => fields.push(Field::Length),
        }
        fields
    }

    fn field(&mut self, name: &str, value: &Text) -> Field {
        let Some(fixed) = value.fixed() else {
            return Field::Filled { name: name.to_owned(), value: value.clone() };
        };
        if let Some(index) = static_index(name.as_bytes(), fixed) {
            return Field::Static(index);
        }
        let known = self.fixed.iter().position(|field| field.name == name && field.value == fixed);
        Field::Fixed(known.unwrap_or_else(|| {
            self.fixed.push(Fixed { name: name.to_owned(), value: fixed.to_vec() });
            self.fixed.len() - 1
        }))
    }
}

/// Blocks kept for each connection.
const KEPT_MAX: usize = 64;

/// The sending end's state of one connection.
#[derive(Debug)]
pub(crate) struct Encoder {
    entries: Vec<Option<u64>>,
    inserted: u64,
    table_bytes: usize,
    table_bytes_max: usize,
    /// A change of the table's size that the next block has to begin with.
    resized: bool,
    /// By request: the block, and how many entries had been inserted then.
    kept: Vec<Option<(u64, Vec<u8>)>>,
}

impl Encoder {
    pub(crate) fn new(fields: &Fields) -> Self {
        Self {
            entries: vec![None; fields.fixed.len()],
            inserted: 0,
            table_bytes: 0,
            table_bytes_max: TABLE_BYTES_MAX,
            resized: false,
            kept: vec![None; fields.requests.len().min(KEPT_MAX)],
        }
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE. A smaller table is begun anew.
    pub(crate) fn resize(&mut self, bytes: usize) {
        let bytes = bytes.min(TABLE_BYTES_MAX);
        if bytes < self.table_bytes_max {
            self.table_bytes_max = bytes;
            self.table_bytes = 0;
            self.entries.iter_mut().for_each(|entry| *entry = None);
            self.kept.iter_mut().for_each(|kept| *kept = None);
            self.resized = true;
        }
    }

    /// Appends the block of a request whose body has `body_bytes`.
    pub(crate) fn encode(
        &mut self,
        fields: &Fields,
        request: usize,
        body_bytes: usize,
        values: &mut Values,
        out: &mut Vec<u8>,
    ) {
        if let Some(Some((inserted, block))) = self.kept.get(request)
            && *inserted == self.inserted
        {
            out.extend_from_slice(block);
            return;
        }
        let start = out.len();
        let before = self.inserted;
        if std::mem::take(&mut self.resized) {
            // First to nothing, which empties the peer's table as it did ours (RFC 7541 §4.2).
            put_integer(0x20, 5, 0, out);
            put_integer(0x20, 5, self.table_bytes_max, out);
        }
        for field in fields.requests.get(request).into_iter().flatten() {
            match field {
                Field::Static(index) => put_integer(0x80, 7, *index, out),
                Field::Fixed(at) => self.fixed(*at, fields, out),
                Field::Filled { name, value } => {
                    let mut filled = Vec::new();
                    value.fill(values, &mut filled);
                    literal(0, 4, name, &filled, out);
                }
                Field::Length => {
                    let mut digits = Vec::new();
                    decimal(crate::number::count(body_bytes), &mut digits);
                    literal(0, 4, "content-length", &digits, out);
                }
            }
        }
        let is_fixed = fields.is_fixed.get(request).copied().unwrap_or(false);
        if is_fixed
            && before == self.inserted
            && let Some(kept) = self.kept.get_mut(request)
        {
            *kept = Some((self.inserted, out.get(start..).unwrap_or(&[]).to_vec()));
        }
    }

    fn fixed(&mut self, at: usize, fields: &Fields, out: &mut Vec<u8>) {
        let (Some(entry), Some(field)) = (self.entries.get_mut(at), fields.fixed.get(at)) else { return };
        if let Some(number) = entry {
            let age = length(self.inserted - 1 - *number);
            put_integer(0x80, 7, STATIC_LEN + 1 + age, out);
            return;
        }
        let bytes = field.name.len() + field.value.len() + ENTRY_OVERHEAD_BYTES;
        if self.table_bytes + bytes > self.table_bytes_max {
            literal(0, 4, &field.name, &field.value, out);
            return;
        }
        literal(0x40, 6, &field.name, &field.value, out);
        *entry = Some(self.inserted);
        self.inserted += 1;
        self.table_bytes += bytes;
    }
}

/// A literal field with a prefix of `bits` below the pattern (RFC 7541 §6.2).
pub(crate) fn literal(pattern: u8, bits: u32, name: &str, value: &[u8], out: &mut Vec<u8>) {
    match static_index_of_name(name.as_bytes()) {
        Some(index) => put_integer(pattern, bits, index, out),
        None => {
            out.push(pattern);
            put_string(name.as_bytes(), out);
        }
    }
    put_string(value, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_wire::h2::hpack::Decoder;

    fn fields(requests: &[Request]) -> Fields {
        let mut this = Fields { requests: Vec::new(), fixed: Vec::new(), is_fixed: Vec::new() };
        for request in requests {
            let list = this.fields_of(request, "https");
            this.is_fixed.push(list.iter().all(|field| matches!(field, Field::Static(_) | Field::Fixed(_))));
            this.requests.push(list);
        }
        this
    }

    fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Request {
        let text = |text: &str| Text::parse(text.as_bytes()).expect("good");
        let headers: Vec<_> = headers.iter().map(|(name, value)| ((*name).to_owned(), text(value))).collect();
        Request::new(method, "a.example", text(path), &headers, text(body))
    }

    #[test]
    fn a_decoder_understands_and_blocks_get_short() {
        let list = [
            request("GET", "/", &[("x-a", "1"), ("connection", "close")], ""),
            request("POST", "/p/{seq}", &[("host", "b.example")], "n={seq}"),
        ];
        let fields = fields(&list);
        let mut values = Values::new(1, 0, 1);
        for resize_at in [usize::MAX, 2, 3] {
            let (mut encoder, mut decoder) = (Encoder::new(&fields), Decoder::new());
            let mut lengths = Vec::new();
            for round in 0..6 {
                if round == resize_at {
                    encoder.resize(60);
                }
                let mut block = Vec::new();
                encoder.encode(&fields, round % 2, 3, &mut values, &mut block);
                let mut found = Vec::new();
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                decoder
                    .decode(&block, |line| {
                        found.push(format!("{} {}", text(line.name()), text(line.value())))
                    })
                    .expect("good");
                let want: &[&str] = if round % 2 == 0 {
                    &[":method GET", ":scheme https", ":authority a.example", ":path /", "x-a 1"]
                } else {
                    &[
                        ":method POST",
                        ":scheme https",
                        ":authority b.example",
                        ":path /p/0",
                        "content-length 3",
                    ]
                };
                assert_eq!(found, want, "round {round}");
                lengths.push(block.len());
            }
            if resize_at == usize::MAX {
                assert_eq!(lengths[2], 5, "five indexed fields: {lengths:?}");
                assert_eq!(lengths[4], 5);
            }
        }
    }
}
