//! `shard-bench report`: saved runs side by side.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use lexopt::prelude::*;

use super::{Code, Ended};
use crate::report::document::{self, Document};
use crate::report::{files, html, text};

const HELP: &str = "\
Usage: shard-bench report FILE... [--html OUT]

Reads runs that --json has saved. Prints them, or draws them on one page with --html: latency by
percentile, their ratio to the first one, over time, stages.
";

pub(crate) fn run(words: impl Iterator<Item = OsString>) -> Ended {
    let mut parser = lexopt::Parser::from_args(words);
    let (mut paths, mut out): (Vec<PathBuf>, Option<PathBuf>) = (Vec::new(), None);
    let usage = |why: &str| {
        Ended::complaint(
            Code::Usage,
            &format!("report: {why}; `shard-bench report --help` tells the options"),
        )
    };
    loop {
        match parser.next() {
            Ok(None) => break,
            Ok(Some(Short('h') | Long("help"))) => return Ended::text(HELP),
            Ok(Some(Long("html"))) => match parser.value() {
                Ok(path) => out = Some(path.into()),
                Err(error) => return usage(&error.to_string()),
            },
            Ok(Some(Value(path))) => paths.push(path.into()),
            Ok(Some(other)) => return usage(&other.unexpected().to_string()),
            Err(error) => return usage(&error.to_string()),
        }
    }
    if paths.is_empty() {
        return usage("want at least one FILE");
    }
    let documents = match paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>() {
        Ok(documents) => documents,
        Err(why) => return usage(&why),
    };
    let Some(out) = out else {
        let all: Vec<String> = documents.iter().map(text::render).collect();
        return Ended::text(&all.join("\n"));
    };
    match html::render(&documents, None).and_then(|page| files::write_whole(&out, page.as_bytes())) {
        Ok(()) => Ended::text(&format!("{} run(s) on {}\n", documents.len(), out.display())),
        Err(why) => Ended::complaint(Code::Output, &why),
    }
}

fn read(path: &Path) -> Result<Document, String> {
    let fault = |why: String| format!("{}: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
    // Another document of this program is named as what it is, not by the first key that it lacks.
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| fault(format!("not JSON: {error}")))?;
    if let Some(schema) = value["schema"].as_str().filter(|schema| *schema != document::SCHEMA) {
        return Err(fault(format!(
            "{schema}; this command reads {}, as `run --json` saves it",
            document::SCHEMA
        )));
    }
    let document: Document = serde_json::from_value(value)
        .map_err(|error| fault(format!("not a run that --json saved: {error}")))?;
    if document.version != document::VERSION {
        let (schema, version) = (&document.schema, document.version);
        return Err(fault(format!(
            "{schema} version {version}; this program reads version {}",
            document::VERSION
        )));
    }
    Ok(document)
}
