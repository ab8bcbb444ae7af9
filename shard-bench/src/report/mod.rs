//! What a run leaves behind: text for people, JSON, CSV, HDR logs and HTML for everything else.

pub(crate) mod csv;
pub(crate) mod document;
pub(crate) mod files;
pub(crate) mod hdr_log;
pub(crate) mod html;
pub(crate) mod text;
pub(crate) mod units;
