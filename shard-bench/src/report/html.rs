//! One page with plots that needs nothing but itself: the documents as JSON, and a script that draws them.

use serde::Serialize;

use super::document::Document;
use crate::ab::Comparison;

const PAGE: &str = include_str!("page.html");

#[derive(Serialize)]
struct Data<'a> {
    runs: &'a [Document],
    ratios: Option<&'a [crate::ab::Ratio]>,
    verdict: Option<&'a str>,
}

/// The page of runs, and of their comparison.
///
/// # Errors
/// What the serializer says.
pub(crate) fn render(runs: &[Document], comparison: Option<&Comparison>) -> Result<String, String> {
    let data = Data {
        runs,
        ratios: comparison.map(|comparison| comparison.ratios.as_slice()),
        verdict: comparison.map(|comparison| comparison.verdict.as_str()),
    };
    let json = serde_json::to_string(&data).map_err(|error| format!("HTML: {error}"))?;
    // Inside a script element only this could end it; in JSON both forms are the same string.
    Ok(PAGE.replace("@DATA@", &json.replace('<', "\\u003c")))
}
