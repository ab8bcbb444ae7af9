//! Access logs and error pages of a connection manager.

use control_api::defaults::route::BODY_INLINE_BYTES_MAX;
use control_api::envoy::accesslog::access_log_filter::FilterSpecifier;
use control_api::envoy::accesslog::comparison_filter::Op;
use control_api::envoy::accesslog::{AccessLog, AccessLogFilter, access_log};
use control_api::envoy::core::SubstitutionFormatString;
use control_api::envoy::core::substitution_format_string::Format;
use control_api::envoy::file_log::{FileAccessLog, file_access_log};
use control_api::envoy::google::Any;
use control_api::envoy::hcm::{LocalReplyConfig, ResponseMapper};
use control_api::envoy::stream_log::{StdoutAccessLog, stdout_access_log};
use control_api::from_any;
use control_api::shard::v1::SyslogAccessLog;

use super::fault::{Checked, Fault, Within, nothing_else};
use super::{policy, value};
use crate::snapshot::model::{ErrorPage, LogSink, LogTarget, SyslogAddress};

/// Bytes of a log template.
const TEMPLATE_BYTES_MAX: usize = 4_096;

pub(super) fn sink(logs: Vec<AccessLog>) -> Checked<Option<LogSink>> {
    if logs.len() > 1 {
        return Err(Fault::new("access_log", "has more than one entry"));
    }
    logs.into_iter().next().map(|log| one_sink(log).within_item("access_log", 0)).transpose()
}

fn one_sink(mut log: AccessLog) -> Checked<LogSink> {
    log.name.clear();
    let config = match log.config_type.take() {
        Some(access_log::ConfigType::TypedConfig(any)) => any,
        None => return Err(Fault::missing("typed_config")),
    };
    nothing_else(&log)?;
    target(&config).within("typed_config")
}

fn target(any: &Any) -> Checked<LogSink> {
    if let Ok(mut file) = from_any::<FileAccessLog>(any) {
        let template = match file.access_log_format.take() {
            None => None,
            Some(file_access_log::AccessLogFormat::LogFormat(format)) => {
                template(format).within("log_format")?
            }
            Some(_) => {
                return Err(Fault::new(
                    "",
                    "uses a deprecated format field, which is not supported: use log_format",
                ));
            }
        };
        let path = std::mem::take(&mut file.path);
        nothing_else(&file)?;
        if !path.starts_with('/') || path.contains('\0') {
            return Err(Fault::new("path", format!("is {path:?}, it must be an absolute path")));
        }
        return Ok(LogSink { target: LogTarget::File(path), template });
    }
    if let Ok(mut stdout) = from_any::<StdoutAccessLog>(any) {
        let template = match stdout.access_log_format.take() {
            None => None,
            Some(stdout_access_log::AccessLogFormat::LogFormat(format)) => {
                template(format).within("log_format")?
            }
        };
        nothing_else(&stdout)?;
        return Ok(LogSink { target: LogTarget::Stdout, template });
    }
    let syslog: SyslogAccessLog = value::extension("", Some(any.clone()))?;
    let address = syslog_address(&syslog.address)?;
    let tag = if syslog.tag.is_empty() { "shard-proxy".to_owned() } else { syslog.tag };
    // RFC 5424 §6.2.5: 1 to 48 printable bytes.
    if tag.len() > 48 || !tag.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Fault::new("tag", "must have 1 to 48 printable characters without blanks"));
    }
    let template =
        if syslog.template.is_empty() { None } else { Some(checked_template("template", syslog.template)?) };
    Ok(LogSink { target: LogTarget::Syslog { address, tag }, template })
}

fn syslog_address(text: &str) -> Checked<SyslogAddress> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
        return Ok(SyslogAddress::Unix(path.to_owned()));
    }
    let udp = text.strip_prefix("udp:").and_then(|address| address.parse().ok());
    udp.map(SyslogAddress::Udp).ok_or_else(|| {
        Fault::new("address", format!("is {text:?}, write `unix:/dev/log` or `udp:192.0.2.1:514`"))
    })
}

fn template(format: SubstitutionFormatString) -> Checked<Option<String>> {
    let text = format_text(format)?;
    checked_template("text_format_source", text).map(Some)
}

/// The text of a format that has nothing but a text.
fn format_text(mut format: SubstitutionFormatString) -> Checked<String> {
    let source = match format.format.take() {
        Some(Format::TextFormatSource(source)) => source,
        Some(Format::JsonFormat(_)) => return Err(Fault::unsupported("json_format")),
        Some(_) => return Err(Fault::unsupported("text_format")),
        None => return Err(Fault::missing("text_format_source")),
    };
    nothing_else(&format)?;
    let bytes = value::inline("text_format_source", Some(source), TEMPLATE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|error| Fault::new("text_format_source", format!("is no text: {error}")))
}

fn checked_template(field: &str, text: String) -> Checked<String> {
    if text.len() > TEMPLATE_BYTES_MAX {
        return Err(Fault::new(
            field,
            format!("has {} bytes, at most {TEMPLATE_BYTES_MAX} are allowed", text.len()),
        ));
    }
    Ok(text)
}

/// The error pages of a listener.
pub(super) fn error_pages(config: Option<LocalReplyConfig>) -> Checked<Vec<ErrorPage>> {
    let Some(mut config) = config else { return Ok(Vec::new()) };
    let mappers = std::mem::take(&mut config.mappers);
    nothing_else(&config)?;
    let mut pages: Vec<ErrorPage> = Vec::with_capacity(mappers.len());
    for (at, mapper) in mappers.into_iter().enumerate() {
        let page = mapped_page(mapper).within_item("mappers", at)?;
        if pages.iter().any(|other| other.status == page.status) {
            let fault: Checked<_> =
                Err(Fault::new("filter", format!("is for status {}, which has a page already", page.status)));
            return fault.within_item("mappers", at);
        }
        pages.push(page);
    }
    Ok(pages)
}

fn mapped_page(mut mapper: ResponseMapper) -> Checked<ErrorPage> {
    let filter = mapper.filter.take().ok_or_else(|| Fault::missing("filter"))?;
    let status = status_of(filter).within("filter")?;
    let body = value::inline("body", mapper.body.take(), BODY_INLINE_BYTES_MAX)?;
    let content_type = match mapper.body_format_override.take() {
        None => String::new(),
        Some(mut format) => {
            let content_type = std::mem::take(&mut format.content_type);
            if format_text(format).within("body_format_override")? != "%LOCAL_REPLY_BODY%" {
                return Err(Fault::new(
                    "body_format_override.text_format_source",
                    "is not supported: only `%LOCAL_REPLY_BODY%` is",
                ));
            }
            content_type
        }
    };
    nothing_else(&mapper)?;
    policy::error_page(status, content_type, body)
}

fn status_of(filter: AccessLogFilter) -> Checked<u32> {
    let Some(FilterSpecifier::StatusCodeFilter(mut filter)) = filter.filter_specifier else {
        return Err(Fault::new("", "is not supported: only status_code_filter is"));
    };
    let mut comparison =
        filter.comparison.take().ok_or_else(|| Fault::missing("status_code_filter.comparison"))?;
    nothing_else(&filter)?;
    if std::mem::take(&mut comparison.op) != Op::Eq as i32 {
        return Err(Fault::new("status_code_filter.comparison.op", "is not supported: only EQ is"));
    }
    let mut value =
        comparison.value.take().ok_or_else(|| Fault::missing("status_code_filter.comparison.value"))?;
    nothing_else(&comparison).within("status_code_filter.comparison")?;
    // Envoy demands a runtime key; shard has no runtime, so the default is the value.
    value.runtime_key.clear();
    Ok(value.default_value)
}
