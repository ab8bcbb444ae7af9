//! Reading of single values: wrappers, durations, inline data, extension configs. Ranges are checked here, whoever
//! wrote the resources, because a feed is not trusted.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control_api::defaults::{Bound, NAME_BYTES_MAX, Range};
use control_api::envoy::core::{
    Address, ConfigSource, DataSource, address, config_source, data_source, socket_address,
};
use control_api::envoy::google;
use control_api::from_any;

use super::fault::{Checked, Fault, Within, nothing_else};

/// A resource's or route's name.
pub(super) fn name(field: &str, name: &str) -> Checked<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Fault::new(
            field,
            format!("must have 1 to {NAME_BYTES_MAX} bytes and no control character"),
        ));
    }
    Ok(())
}

/// A value in its range, or the default.
pub(super) fn bounded<T: PartialOrd + Copy + Debug>(
    field: &str,
    value: Option<T>,
    bound: &Bound<T>,
) -> Checked<T> {
    match value {
        None => Ok(bound.default),
        Some(value) if bound.holds(&value) => Ok(value),
        Some(value) => Err(out_of_range(field, &value, &bound.min, &bound.max)),
    }
}

/// A value in its range, or none.
pub(super) fn ranged<T: PartialOrd + Copy + Debug>(
    field: &str,
    value: Option<T>,
    range: &Range<T>,
) -> Checked<Option<T>> {
    match value {
        None => Ok(None),
        Some(value) if range.holds(&value) => Ok(Some(value)),
        Some(value) => Err(out_of_range(field, &value, &range.min, &range.max)),
    }
}

fn out_of_range(field: &str, value: &dyn Debug, min: &dyn Debug, max: &dyn Debug) -> Fault {
    Fault::new(field, format!("is {value:?}, it must lie between {min:?} and {max:?}"))
}

/// A duration without its range.
pub(super) fn duration(field: &str, value: Option<google::Duration>) -> Checked<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    match (u64::try_from(value.seconds), u32::try_from(value.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Some(Duration::new(seconds, nanos))),
        _ => {
            Err(Fault::new(field, "is no duration: seconds and nanos must not be negative, nanos below 10^9"))
        }
    }
}

pub(super) fn bounded_duration(
    field: &str,
    value: Option<google::Duration>,
    bound: &Bound<Duration>,
) -> Checked<Duration> {
    bounded(field, duration(field, value)?, bound)
}

pub(super) fn ranged_duration(
    field: &str,
    value: Option<google::Duration>,
    range: &Range<Duration>,
) -> Checked<Option<Duration>> {
    ranged(field, duration(field, value)?, range)
}

pub(super) fn bounded_u32(
    field: &str,
    value: Option<google::UInt32Value>,
    bound: &Bound<u32>,
) -> Checked<u32> {
    bounded(field, value.map(|v| v.value), bound)
}

/// A bound of something that is counted in `usize`.
pub(super) fn bounded_count(field: &str, value: Option<u32>, bound: &Bound<u32>) -> Checked<usize> {
    let value = bounded(field, value, bound)?;
    usize::try_from(value)
        .map_err(|error| Fault::new(field, format!("is {value}, too large for this machine ({error})")))
}

/// A switch that shard has in one position only; unset means that position.
pub(super) fn fixed(field: &str, value: Option<google::BoolValue>, position: bool) -> Checked<()> {
    match value {
        Some(value) if value.value != position => Err(Fault::new(
            field,
            format!("is not supported as {}: shard always has {position}", value.value),
        )),
        Some(_) | None => Ok(()),
    }
}

/// A value of an enumeration that `known` knows.
pub(super) fn choice<T>(field: &str, number: i32, known: impl FnOnce(i32) -> Option<T>) -> Checked<T> {
    known(number).ok_or_else(|| Fault::new(field, format!("has the value {number}, which is not supported")))
}

/// Inline bytes of at most `bytes_max`.
pub(super) fn inline(field: &str, source: Option<DataSource>, bytes_max: usize) -> Checked<Vec<u8>> {
    let Some(mut source) = source else { return Ok(Vec::new()) };
    let bytes = match source.specifier.take() {
        Some(data_source::Specifier::InlineBytes(bytes)) => bytes,
        Some(data_source::Specifier::InlineString(text)) => text.into_bytes(),
        Some(data_source::Specifier::Filename(_)) => return Err(Fault::unsupported("filename").within(field)),
        Some(data_source::Specifier::EnvironmentVariable(_)) => {
            return Err(Fault::unsupported("environment_variable").within(field));
        }
        None => return Err(Fault::new(field, "is empty: give inline_bytes or inline_string")),
    };
    nothing_else(&source).within(field)?;
    if bytes.len() > bytes_max {
        return Err(Fault::new(field, format!("has {} bytes, at most {bytes_max} are allowed", bytes.len())));
    }
    Ok(bytes)
}

/// The message in an extension's `typed_config`.
pub(super) fn extension<M>(field: &str, any: Option<google::Any>) -> Checked<M>
where
    M: prost::Message + prost::Name + Default,
{
    let any = any.ok_or_else(|| Fault::missing(field))?;
    from_any(&any).map_err(|error| match error {
        control_api::AnyError::WrongType { found, .. } => {
            Fault::new(field, format!("has the type `{found}`, which is not supported here"))
        }
        malformed @ control_api::AnyError::Malformed { .. } => {
            Fault::new(field, format!("is unreadable: {malformed}"))
        }
    })
}

/// A config source: ADS, and nothing else.
pub(super) fn from_ads(field: &str, source: Option<ConfigSource>) -> Checked<()> {
    use control_api::envoy::core::ApiVersion;
    let mut source = source.ok_or_else(|| Fault::missing(field))?;
    match source.config_source_specifier.take() {
        Some(config_source::ConfigSourceSpecifier::Ads(ads)) => {
            nothing_else(&ads).within("ads").within(field)?
        }
        _ => return Err(Fault::new(field, "must be `ads`")),
    }
    let version = std::mem::take(&mut source.resource_api_version);
    if version != ApiVersion::Auto as i32 && version != ApiVersion::V3 as i32 {
        return Err(Fault::unsupported("resource_api_version").within(field));
    }
    nothing_else(&source).within(field)
}

/// The host and port of an address, TCP only.
pub(super) fn host_and_port(field: &str, address: Option<Address>) -> Checked<(String, u16)> {
    let mut socket = match address.and_then(|a| a.address) {
        Some(address::Address::SocketAddress(socket)) => socket,
        Some(address::Address::Pipe(_)) => return Err(Fault::unsupported("pipe").within(field)),
        Some(address::Address::EnvoyInternalAddress(_)) => {
            return Err(Fault::unsupported("envoy_internal_address").within(field));
        }
        None => return Err(Fault::missing(field)),
    };
    let within = |fault: Fault| fault.within("socket_address").within(field);
    let host = std::mem::take(&mut socket.address);
    let port = match socket.port_specifier.take() {
        Some(socket_address::PortSpecifier::PortValue(port)) => u16::try_from(port).map_err(|error| {
            within(Fault::new("port_value", format!("is {port}, which is no port ({error})")))
        })?,
        Some(socket_address::PortSpecifier::NamedPort(_)) => {
            return Err(within(Fault::unsupported("named_port")));
        }
        None => return Err(within(Fault::missing("port_value"))),
    };
    nothing_else(&socket).map_err(within)?;
    Ok((host, port))
}

/// An address with an IP literal.
pub(super) fn ip_and_port(field: &str, address: Option<Address>) -> Checked<SocketAddr> {
    let (host, port) = host_and_port(field, address)?;
    let ip: IpAddr = host.parse().map_err(|error| {
        Fault::new("socket_address.address", format!("is {host:?}, it must be an IP literal ({error})"))
            .within(field)
    })?;
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_range_are_inside_and_the_message_says_so() {
        let bound = Bound { min: 2_u32, default: 5, max: 9 };
        for (value, expected) in
            [(None, Some(5)), (Some(2), Some(2)), (Some(9), Some(9)), (Some(1), None), (Some(10), None)]
        {
            let found = bounded("f", value, &bound);
            assert_eq!(found.as_ref().ok(), expected.as_ref(), "{value:?}");
        }
        let fault = bounded("f", Some(10), &bound).expect_err("out of range");
        assert_eq!(fault.to_string(), "f is 10, it must lie between 2 and 9");
    }

    #[test]
    fn durations_are_never_negative_or_malformed() {
        for (seconds, nanos, expected) in [
            (0, 0, Some(Duration::ZERO)),
            (1, 500_000_000, Some(Duration::from_millis(1500))),
            (-1, 0, None),
            (0, -1, None),
            (0, 1_000_000_000, None),
            (i64::MAX, 0, Some(Duration::from_secs(u64::MAX >> 1))),
        ] {
            let found = duration("f", Some(google::Duration { seconds, nanos }));
            assert_eq!(found.ok().flatten(), expected, "{seconds} s {nanos} ns");
        }
    }
}
