//! Bodies that come from the config: error pages and direct responses.

use control_api::envoy::accesslog::{
    AccessLogFilter, ComparisonFilter, StatusCodeFilter, access_log_filter, comparison_filter,
};
use control_api::envoy::core::{RuntimeUInt32, SubstitutionFormatString, substitution_format_string};
use control_api::envoy::hcm::{LocalReplyConfig, ResponseMapper};
use control_api::shard::v1::ErrorPage;

use super::{Emitter, inline_bytes, inline_string};
use crate::finding::Problem;
use crate::yaml::Node;

const PAGE_CONTENT_TYPE: &str = "text/html; charset=utf-8";

impl Emitter<'_> {
    /// The error pages of a list; each status once.
    pub(super) fn error_pages(&mut self, pages: &[Node]) -> Vec<ErrorPage> {
        let mut read: Vec<ErrorPage> = Vec::new();
        for page in pages {
            let Some(status) = page.int("status") else {
                continue;
            };
            if read.iter().any(|p| p.status == status) {
                self.error(page, format!("a second page for status {status}"), "keep one of the two");
                continue;
            }
            if let Some(body) = self.body(page) {
                read.push(ErrorPage {
                    status,
                    content_type: page.word("content_type").unwrap_or(PAGE_CONTENT_TYPE).to_owned(),
                    body,
                });
            }
        }
        read
    }

    /// The bytes of a node's `body` or `file`; empty when it has neither.
    pub(super) fn body(&mut self, node: &Node) -> Option<Vec<u8>> {
        let Some(file) = node.get("file") else {
            return Some(node.word("body").unwrap_or("").as_bytes().to_vec());
        };
        let contents = self.read_file(file)?;
        if contents.len() > control_api::defaults::route::BODY_INLINE_BYTES_MAX {
            let problem = Problem::new(
                format!("the file has {} bytes, more than 64 KiB", contents.len()),
                "serve it from an upstream",
            );
            self.findings.error(file, problem);
            return None;
        }
        Some(contents.to_vec())
    }
}

/// Error pages of a whole listener, in Envoy's form.
pub(super) fn local_reply(pages: Vec<ErrorPage>) -> Option<LocalReplyConfig> {
    (!pages.is_empty())
        .then(|| LocalReplyConfig { mappers: pages.into_iter().map(mapper).collect(), ..Default::default() })
}

fn mapper(page: ErrorPage) -> ResponseMapper {
    let comparison = ComparisonFilter {
        op: comparison_filter::Op::Eq.into(),
        value: Some(RuntimeUInt32 {
            default_value: page.status,
            // Envoy insists on a key, although no runtime layer defines it.
            runtime_key: format!("error_page.{}", page.status),
        }),
    };
    ResponseMapper {
        filter: Some(AccessLogFilter {
            filter_specifier: Some(access_log_filter::FilterSpecifier::StatusCodeFilter(StatusCodeFilter {
                comparison: Some(comparison),
            })),
        }),
        body: Some(inline_bytes(&page.body)),
        body_format_override: Some(SubstitutionFormatString {
            content_type: page.content_type,
            format: Some(substitution_format_string::Format::TextFormatSource(inline_string(
                "%LOCAL_REPLY_BODY%",
            ))),
            ..Default::default()
        }),
        ..Default::default()
    }
}
