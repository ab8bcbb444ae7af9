//! Policies: address rules, client limits, error pages, CORS, and the merge of `shard.v1.RouteOptions`, CORS and token
//! requirements over the levels route configuration, virtual host, route.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::time::Duration;

use control_api::defaults::{balance as balance_limits, route as limits};
use control_api::envoy::cors::CorsPolicy as CorsMessage;
use control_api::envoy::google::Any;
use control_api::envoy::jwt_authn::PerRouteConfig;
use control_api::envoy::matcher::string_matcher::MatchPattern;
use control_api::envoy::names;
use control_api::shard::v1;
use http_balance::shed::Class;
use http_gateway::acl::AddressRules;
use http_gateway::body_limit::BodyRate;
use http_gateway::cidr::{Cidr, CidrSet};
use http_gateway::client_limit::{ClientLimit, RequestRate};
use http_gateway::cors::{AllowedFields, CorsConfig, CorsPolicy, Credentials, OriginPattern};

use super::fault::{Checked, Fault, Within, nothing_else};
use super::matches::regex_text;
use super::mirror::MirrorLimits;
use super::token::TokenLevel;
use super::value;
use crate::snapshot::model::{ErrorPage, IdempotencyKey};

/// CIDRs or bare addresses.
pub(super) fn cidrs(field: &str, texts: &[String]) -> Checked<CidrSet> {
    let parse = |(at, text): (usize, &String)| {
        text.parse::<Cidr>()
            .map_err(|error| Fault::new(&format!("{field}[{at}]"), format!("is {text:?}: {error}")))
    };
    texts.iter().enumerate().map(parse).collect()
}

pub(super) fn address_rules(rules: &v1::AddressRules) -> Checked<AddressRules> {
    let allow = if rules.allow.is_empty() { None } else { Some(cidrs("allow", &rules.allow)?) };
    Ok(AddressRules::new(allow, cidrs("deny", &rules.deny)?))
}

/// Which limits make sense where the message stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitPlace {
    Listener,
    Route,
}

/// None when the message limits nothing.
pub(super) fn client_limit(limit: &v1::ClientLimit, place: LimitPlace) -> Checked<Option<ClientLimit>> {
    let set = |n: u32| (n > 0).then_some(n);
    let connections_max =
        value::ranged("connections_max", set(limit.connections_max), &limits::CLIENT_CONNECTIONS)?;
    if connections_max.is_some() && place == LimitPlace::Route {
        return Err(Fault::new(
            "connections_max",
            "is not supported on a route: connections belong to the listener",
        ));
    }
    let rate = |field, n| {
        value::ranged(field, set(n), &limits::REQUESTS_PER_SECOND).map(|n| n.and_then(NonZeroU32::new))
    };
    let per_second = rate("requests_per_second", limit.requests_per_second)?;
    let burst = rate("requests_burst", limit.requests_burst)?;
    let requests = match (per_second, burst) {
        (Some(per_second), burst) => Some(RequestRate { per_second, burst: burst.unwrap_or(per_second) }),
        (None, None) => None,
        (None, Some(_)) => return Err(Fault::new("requests_burst", "needs requests_per_second")),
    };
    let limit = ClientLimit { connections_max, requests };
    Ok((limit != ClientLimit::default()).then_some(limit))
}

/// The body for errors of one status; an empty content type is plain text.
pub(super) fn error_page(status: u32, content_type: String, body: Vec<u8>) -> Checked<ErrorPage> {
    let status = u16::try_from(status).ok().filter(|status| (400..=599).contains(status));
    let status = status.ok_or_else(|| Fault::new("status", "must lie between 400 and 599"))?;
    if body.len() > limits::BODY_INLINE_BYTES_MAX {
        return Err(Fault::new(
            "body",
            format!("has {} bytes, at most {} are allowed", body.len(), limits::BODY_INLINE_BYTES_MAX),
        ));
    }
    let content_type = content_type_or_text("content_type", content_type)?;
    Ok(ErrorPage { status, content_type, body: body.into() })
}

pub(super) fn content_type_or_text(field: &str, content_type: String) -> Checked<String> {
    if content_type.is_empty() {
        return Ok("text/plain".to_owned());
    }
    if !http_wire::token::is_field_value(content_type.as_bytes()) {
        return Err(Fault::new(field, "holds a control character"));
    }
    Ok(content_type)
}

/// The policies that hold at one level, its outer levels merged in.
#[derive(Clone, Debug, Default)]
pub(super) struct RoutePolicies {
    pub(super) body_bytes_max: Option<u64>,
    pub(super) access: Option<AddressRules>,
    pub(super) client_limit: Option<ClientLimit>,
    pub(super) deprecation: Option<String>,
    pub(super) sunset: Option<String>,
    pub(super) error_pages: Vec<ErrorPage>,
    pub(super) cors: Option<CorsPolicy>,
    pub(super) class: Class,
    pub(super) retry_on_timeout: bool,
    pub(super) idempotency_key: IdempotencyKey,
    pub(super) mirror: MirrorLimits,
    pub(super) hedge_after: Option<Duration>,
    pub(super) body_rate: Option<BodyRate>,
    pub(super) token: TokenLevel,
}

impl RoutePolicies {
    /// Reads a level's `typed_per_filter_config` on top of the outer level's policies: what is set here wins.
    pub(super) fn with_level<S: BuildHasher>(&self, configs: &HashMap<String, Any, S>) -> Checked<Self> {
        let mut merged = self.clone();
        for (key, any) in configs {
            match key.as_str() {
                v1::KEY => {
                    let options: v1::RouteOptions =
                        value::extension("", Some(any.clone())).within_key("typed_per_filter_config", key)?;
                    merged.set(options).within_key("typed_per_filter_config", key)?;
                }
                names::CORS => {
                    let policy: CorsMessage =
                        value::extension("", Some(any.clone())).within_key("typed_per_filter_config", key)?;
                    merged.cors = Some(cors(policy).within_key("typed_per_filter_config", key)?);
                }
                names::JWT_AUTHN => {
                    let config: PerRouteConfig =
                        value::extension("", Some(any.clone())).within_key("typed_per_filter_config", key)?;
                    merged.token.set_requirement(config).within_key("typed_per_filter_config", key)?;
                }
                _ => {
                    let fault: Checked<Self> = Err(Fault::unsupported(""));
                    return fault.within_key("typed_per_filter_config", key);
                }
            }
        }
        Ok(merged)
    }

    fn set(&mut self, options: v1::RouteOptions) -> Checked<()> {
        // 0 is "no limit", so that an inner level can lift an outer one's.
        if let Some(bytes) = options.body_bytes_max {
            let set = (bytes > 0).then_some(bytes);
            self.body_bytes_max = match set {
                Some(bytes) => Some(value::bounded("body_bytes_max", Some(bytes), &limits::BODY_BYTES)?),
                None => None,
            };
        }
        if let Some(class) = options.priority_class {
            let class = value::choice("priority_class", class, |n| v1::PriorityClass::try_from(n).ok())?;
            self.class = match class {
                v1::PriorityClass::Standard => Class::Standard,
                v1::PriorityClass::Critical => Class::Critical,
                v1::PriorityClass::Free => Class::Free,
                v1::PriorityClass::Sheddable => Class::Sheddable,
            };
        }
        self.retry_on_timeout = options.retry_on_timeout.unwrap_or(self.retry_on_timeout);
        self.idempotency_key = match options.retry_with_idempotency_key {
            Some(true) => IdempotencyKey::Honoured,
            Some(false) => IdempotencyKey::Ignored,
            None => self.idempotency_key,
        };
        if options.hedge_after.is_some() {
            // 0 is "off", for the same reason.
            self.hedge_after = match value::duration("hedge_after", options.hedge_after)? {
                Some(Duration::ZERO) | None => None,
                after => Some(value::bounded("hedge_after", after, &balance_limits::HEDGE_AFTER)?),
            };
        }
        if let Some(rate) = options.body_rate {
            self.body_rate = body_rate(rate).within("body_rate")?;
        }
        if let Some(token) = options.token {
            self.token.set_scopes(token).within("token")?;
        }
        if let Some(options) = options.mirror {
            self.mirror = MirrorLimits::read(options).within("mirror")?;
        }
        if let Some(rules) = &options.access {
            self.access = Some(address_rules(rules).within("access")?);
        }
        if let Some(limit) = &options.client_limit {
            self.client_limit = client_limit(limit, LimitPlace::Route).within("client_limit")?;
        }
        if !options.deprecation.is_empty() {
            self.deprecation = Some(deprecation(options.deprecation)?);
        }
        if !options.sunset.is_empty() {
            self.sunset = Some(sunset(options.sunset)?);
        }
        for (at, page) in options.error_pages.into_iter().enumerate() {
            let page =
                error_page(page.status, page.content_type, page.body).within_item("error_pages", at)?;
            self.error_pages.retain(|old| old.status != page.status);
            self.error_pages.push(page);
        }
        Ok(())
    }
}

fn body_rate(rate: v1::BodyRate) -> Checked<Option<BodyRate>> {
    // 0 is "off", so that an inner level can lift an outer one's.
    if rate.bytes_per_second_min == Some(0) {
        return Ok(None);
    }
    let per_second = value::bounded("bytes_per_second_min", rate.bytes_per_second_min, &limits::BODY_RATE)?;
    let window = value::bounded_duration("window", rate.window, &limits::BODY_RATE_WINDOW)?;
    let bytes = u128::from(per_second) * window.as_millis() / 1000;
    Ok(Some(BodyRate { bytes: u64::try_from(bytes).unwrap_or(u64::MAX).max(1), window }))
}

/// RFC 9745 §2: a structured-field date, `@` and seconds.
fn deprecation(text: String) -> Checked<String> {
    let seconds = text.strip_prefix('@').and_then(|seconds| seconds.parse::<i64>().ok());
    // A structured-field integer has at most 15 digits (RFC 9651 §3.3.1); no sign `+`, no blank.
    let plain = text.bytes().skip(1).all(|b| b.is_ascii_digit() || b == b'-') && text.len() <= 16;
    match seconds {
        Some(_) if plain => Ok(text),
        _ => Err(Fault::new("deprecation", format!("is {text:?}, write `@` and unix seconds (RFC 9745)"))),
    }
}

/// RFC 8594 §3: an HTTP date.
fn sunset(text: String) -> Checked<String> {
    if unix_s(&text).is_none_or(|unix_s| http_wire::date::imf_fixdate(unix_s) != text.as_bytes()) {
        return Err(Fault::new(
            "sunset",
            format!("is {text:?}, write an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT`"),
        ));
    }
    Ok(text)
}

/// What an IMF-fixdate says, leniently: the caller compares the date's own form with the text. Days by the civil
/// calendar algorithm of Howard Hinnant ("chrono-Compatible Low-Level Date Algorithms", 2014).
fn unix_s(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split([' ', ':']).skip(1);
    let day: u64 = words.next()?.parse().ok()?;
    let month_name = words.next()?;
    let month = u64::try_from(MONTHS.iter().position(|m| *m == month_name)?).ok()? + 1;
    let year: u64 = words.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let clock: Vec<u64> = words.take(3).map(str::parse).collect::<Result<_, _>>().ok()?;
    let [hour, minute, second] = clock[..] else { return None };
    let shifted = if month > 2 { year } else { year - 1 };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    let days = (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).checked_sub(719_468)?;
    (hour < 24 && minute < 60 && second < 60 && day <= 31)
        .then_some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn cors(mut policy: CorsMessage) -> Checked<CorsPolicy> {
    let origins = std::mem::take(&mut policy.allow_origin_string_match);
    if origins.is_empty() {
        return Err(Fault::missing("allow_origin_string_match"));
    }
    let origins = origins.into_iter().enumerate().map(|(at, origin)| {
        let pattern = if origin.ignore_case {
            Err(Fault::unsupported("ignore_case"))
        } else {
            origin_pattern(origin.match_pattern)
        };
        pattern.within_item("allow_origin_string_match", at)
    });
    let origins = origins.collect::<Checked<Vec<_>>>()?;
    let list = |text: String| -> Vec<String> {
        text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
    };
    let requested = list(std::mem::take(&mut policy.allow_headers));
    let allowed_fields = if requested.iter().any(|name| name == "*") {
        AllowedFields::Requested
    } else {
        AllowedFields::Listed(requested)
    };
    let max_age = std::mem::take(&mut policy.max_age);
    let max_age_s = if max_age.is_empty() {
        None
    } else {
        Some(
            max_age
                .parse()
                .map_err(|error| Fault::new("max_age", format!("is {max_age:?}, write seconds ({error})")))?,
        )
    };
    let credentials = match policy.allow_credentials.take() {
        Some(allow) if allow.value => Credentials::Allow,
        Some(_) | None => Credentials::Omit,
    };
    let config = CorsConfig {
        origins,
        methods: list(std::mem::take(&mut policy.allow_methods)),
        allowed_fields,
        exposed_fields: list(std::mem::take(&mut policy.expose_headers)),
        credentials,
        max_age_s,
    };
    nothing_else(&policy)?;
    CorsPolicy::new(config).map_err(|error| Fault::new("", format!("is refused: {error}")))
}

fn origin_pattern(pattern: Option<MatchPattern>) -> Checked<OriginPattern> {
    let regex = |pattern: &str| {
        OriginPattern::regex(pattern)
            .map_err(|error| Fault::new("safe_regex", format!("is refused: {error}")))
    };
    match pattern {
        Some(MatchPattern::Exact(text)) if text == "*" || !text.contains('*') => {
            OriginPattern::parse(&text).map_err(|error| Fault::new("exact", format!("is refused: {error}")))
        }
        // An exact origin with a star in it is no origin, and reading it as a pattern would let others in.
        Some(MatchPattern::Exact(text)) => {
            Err(Fault::new("exact", format!("is {text:?}: use `*` alone, or a safe_regex")))
        }
        Some(MatchPattern::Prefix(text)) => regex(&format!("{}.*", regex::escape(&text))),
        Some(MatchPattern::Suffix(text)) => regex(&format!(".*{}", regex::escape(&text))),
        Some(MatchPattern::SafeRegex(matcher)) => regex(&regex_text(matcher).within("safe_regex")?),
        Some(MatchPattern::Contains(_)) => Err(Fault::unsupported("contains")),
        Some(MatchPattern::Custom(_)) => Err(Fault::unsupported("custom")),
        None => Err(Fault::new("", "has no pattern")),
    }
}
