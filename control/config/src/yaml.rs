//! YAML text to a tree whose every node knows its place and key path.
//!
//! Invariants: the tree is bounded in depth and nodes; aliases, tags, several documents, duplicate and composite
//! keys are errors, so a small file cannot unfold into a large one ("billion laughs") and no key is silently lost.
//! A scalar stays text; what it means is decided by the key it stands under.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::finding::{FileId, Findings, Place, Problem};

const DEPTH_MAX: usize = 24;
const NODES_MAX: usize = 200_000;
const MAP_KEYS_MAX: usize = 10_000;
const KEY_BYTES_MAX: usize = 256;
/// A longer key path is cut: the paths of all nodes must stay a small multiple of the file.
const PATH_BYTES_MAX: usize = 256;

/// A value with its place and its key path.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Place,
    /// Such as `routes[2].match.prefix`.
    pub(crate) path: String,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Nothing, `~` or `null`.
    Null,
    Scalar {
        text: String,
        /// In quotes or a block: never a number or truth value.
        is_quoted: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping; the value's path ends in the key.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_at: Place,
    pub(crate) value: Node,
}

impl Node {
    /// An empty mapping, which stands in where the author wrote none.
    pub(crate) fn empty_map(at: Place, path: &str) -> Self {
        Self { at, path: path.to_owned(), value: Value::Map(Vec::new()) }
    }

    /// The value under a key of a mapping.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|e| e.key == key).map(|e| &e.value)
    }

    /// The keys of a mapping; nothing for other values.
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            Value::Null | Value::Scalar { .. } | Value::List(_) => &[],
        }
    }

    /// The items of a list; nothing for other values.
    pub(crate) fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            Value::Null | Value::Scalar { .. } | Value::Map(_) => &[],
        }
    }

    /// The text of a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The text of a scalar without quotes: a number or truth value.
    pub(crate) fn plain(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, is_quoted: false } => Some(text),
            Value::Null | Value::Scalar { .. } | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// How a finding shows the value.
    pub(crate) fn shown(&self) -> String {
        match &self.value {
            Value::Null => String::new(),
            Value::Scalar { text, .. } => text.clone(),
            Value::List(items) => format!("[… {} items]", items.len()),
            Value::Map(entries) => {
                let keys: Vec<&str> = entries.iter().take(8).map(|e| e.key.as_str()).collect();
                format!("{{{}}}", keys.join(", "))
            }
        }
    }
}

/// A collection that is still open.
struct Open {
    node: Node,
    /// The key whose value comes next, in a mapping.
    key: Option<(String, Place)>,
}

/// Reads one document. Findings tell why when the result is `None` (or that it is incomplete).
pub(crate) fn parse(file: FileId, text: &str, findings: &mut Findings) -> Option<Node> {
    let mut builder = Builder { file, open: Vec::new(), root: None, nodes: 0 };
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let step = match event {
            Ok((event, span)) => builder.step(event, span),
            Err(error) => {
                let at = place(file, error.marker());
                let problem = Problem::new(
                    format!("not valid YAML: {}", error.info()),
                    "correct the syntax at or just before this place",
                );
                Err((at, String::new(), problem))
            }
        };
        if let Err((at, value, problem)) = step {
            findings.error_at(at, &builder.next_path(), &value, problem);
            return None;
        }
    }
    if builder.root.is_none() {
        findings.error_in(
            findings.file(file).to_owned().as_str(),
            Problem::new("the file is empty", "write at least one key, or delete the file"),
        );
    }
    builder.root
}

fn place(file: FileId, marker: &saphyr_parser::Marker) -> Place {
    Place {
        file,
        line: u32::try_from(marker.line()).unwrap_or(u32::MAX),
        column: u32::try_from(marker.col() + 1).unwrap_or(u32::MAX),
    }
}

struct Builder {
    file: FileId,
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
}

type Refusal = (Place, String, Problem);

impl Builder {
    fn step(&mut self, event: Event<'_>, span: Span) -> Result<(), Refusal> {
        let at = place(self.file, &span.start);
        let refuse = |value: String, message: &str, fix: &str| Err((at, value, Problem::new(message, fix)));
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.root.is_some() => refuse(
                String::new(),
                "a second YAML document in one file",
                "move it to a file of its own and delete the `---` line",
            ),
            Event::DocumentStart(_) => Ok(()),
            Event::Alias(_) => refuse(
                String::new(),
                "YAML aliases (`*name`) are not supported",
                "repeat the value, or put it under `defaults`",
            ),
            Event::Scalar(_, _, _, Some(tag))
            | Event::SequenceStart(_, Some(tag))
            | Event::MappingStart(_, Some(tag)) => {
                refuse(tag.to_string(), "YAML tags are not supported", "delete the tag")
            }
            Event::Scalar(text, style, _, None) => self.scalar(at, &text, style),
            Event::SequenceStart(_, None) => self.open_collection(at, Value::List(Vec::new())),
            Event::MappingStart(_, None) => self.open_collection(at, Value::Map(Vec::new())),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(closed) => self.place_value(closed.node),
                None => Ok(()),
            },
        }
    }

    fn scalar(&mut self, at: Place, text: &str, style: ScalarStyle) -> Result<(), Refusal> {
        self.count(at)?;
        if let Some(open) = self.open.last_mut()
            && matches!(open.node.value, Value::Map(_))
            && open.key.is_none()
        {
            return open.take_key(at, text);
        }
        let is_quoted = style != ScalarStyle::Plain;
        let value = if !is_quoted && matches!(text, "" | "~" | "null") {
            Value::Null
        } else {
            Value::Scalar { text: text.to_owned(), is_quoted }
        };
        let path = self.next_path();
        self.place_value(Node { at, path, value })
    }

    fn open_collection(&mut self, at: Place, value: Value) -> Result<(), Refusal> {
        self.count(at)?;
        if self.open.len() >= DEPTH_MAX {
            let problem = Problem::new(
                format!("nested deeper than {DEPTH_MAX} levels"),
                "no key of shard nests that deep; check the indentation",
            );
            return Err((at, String::new(), problem));
        }
        if let Some(open) = self.open.last()
            && matches!(open.node.value, Value::Map(_))
            && open.key.is_none()
        {
            let problem = Problem::new(
                "a list or mapping stands where a key is expected",
                "write a plain text key, and put text that holds `{` or `[` in quotes",
            );
            return Err((at, String::new(), problem));
        }
        let node = Node { at, path: self.next_path(), value };
        self.open.push(Open { node, key: None });
        Ok(())
    }

    fn place_value(&mut self, node: Node) -> Result<(), Refusal> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.node.value {
            Value::List(items) => items.push(node),
            Value::Map(entries) => {
                if let Some((key, key_at)) = open.key.take() {
                    entries.push(Entry { key, key_at, value: node });
                }
            }
            Value::Null | Value::Scalar { .. } => {}
        }
        Ok(())
    }

    fn count(&mut self, at: Place) -> Result<(), Refusal> {
        self.nodes += 1;
        if self.nodes <= NODES_MAX {
            return Ok(());
        }
        let problem = Problem::new(format!("more than {NODES_MAX} values in one file"), "split the service");
        Err((at, String::new(), problem))
    }

    /// The key path of the value that comes next.
    fn next_path(&self) -> String {
        let Some(open) = self.open.last() else {
            return String::new();
        };
        let parent = &open.node.path;
        if parent.len() > PATH_BYTES_MAX {
            return parent.clone();
        }
        match (&open.node.value, &open.key) {
            (Value::List(items), _) => format!("{parent}[{}]", items.len()),
            (_, Some((key, _))) => join_path(parent, key),
            (_, None) => parent.clone(),
        }
    }
}

impl Open {
    fn take_key(&mut self, at: Place, key: &str) -> Result<(), Refusal> {
        if key.len() > KEY_BYTES_MAX || self.node.entries().len() >= MAP_KEYS_MAX {
            let problem = Problem::new(
                format!("keys have at most {KEY_BYTES_MAX} bytes and a mapping at most {MAP_KEYS_MAX} keys"),
                "shorten the key, or split the mapping over several files",
            );
            return Err((at, key.to_owned(), problem));
        }
        let first = self.node.entries().iter().find(|e| e.key == key).map(|e| e.key_at.line);
        if let Some(line) = first {
            let problem = Problem::new(
                format!("the key `{key}` is already there, on line {line}"),
                "keep one of the two",
            );
            return Err((at, key.to_owned(), problem));
        }
        self.key = Some((key.to_owned(), at));
        Ok(())
    }
}

/// Appends a key to a path; keys with dots are quoted.
pub(crate) fn join_path(parent: &str, key: &str) -> String {
    let dot = if parent.is_empty() { "" } else { "." };
    if key.contains('.') { format!("{parent}{dot}\"{key}\"") } else { format!("{parent}{dot}{key}") }
}
