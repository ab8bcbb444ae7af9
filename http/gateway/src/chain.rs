//! THE list of policies a request passes before it is forwarded, in order:
//! address rules, client limit, announced body length, CORS, token.
//!
//! The set is closed: a new filter is a new file and a new line in [`evaluate`]. Cheap and strict ones stand
//! first, so that a refused caller costs little and learns nothing from the later ones; the token stands behind CORS,
//! because a preflight carries none (Fetch standard, §3.2.2). Listener policies and route policies pass the same list,
//! one after the other. Called by `exchange`.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use http_wire::fields::{FieldError, FieldId, Fields};
use http_wire::head::{BodyLength, RequestHead};
use http_wire::number::Decimal;

use crate::acl::{Access, AddressRules};
use crate::body_limit::BodyMeter;
use crate::client_limit::{ClientLimit, ClientLimiter, LimitScope, RequestAdmission};
use crate::cors::{CorsPolicy, CorsRequest};
use crate::jwt::{Identity, Known, TokenCaches, TokenFault, TokenPolicy, Unseen};

/// Why the chain answers a request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    AddressDenied,
    RateLimited,
    BodyTooLarge,
    CorsOriginDenied,
    /// Not an error: a preflight has its answer here.
    CorsPreflight,
    Token(TokenFault),
}

/// The answer to a request that is not forwarded. Its own fields are in the block given to [`evaluate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub cause: Cause,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    Continue,
    /// Its token holds.
    Verified(Rc<Identity>),
    /// Everything else passed. [`verify_token`] decides, when there is time for a signature.
    Unverified(Unseen),
    Reply(Refusal),
}

/// The policies of one listener or route. The default lets everything pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policies<'a> {
    pub access: Option<&'a AddressRules>,
    pub client_limit: Option<(LimitScope, &'a ClientLimit)>,
    pub body_bytes_max: Option<u64>,
    pub cors: Option<&'a CorsPolicy>,
    pub token: Option<TokenPolicy<'a>>,
}

impl Policies<'_> {
    /// Whether everything passes.
    pub const fn is_empty(&self) -> bool {
        self.access.is_none()
            && self.client_limit.is_none()
            && self.body_bytes_max.is_none()
            && self.cors.is_none()
            && self.token.is_none()
    }
}

/// What the policies look at.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// From [`crate::client_addr`].
    pub client: IpAddr,
    pub head: &'a RequestHead,
    pub body: BodyLength,
    /// The shard's clock.
    pub now: Duration,
    /// The same moment since 1970.
    pub unix_now: Duration,
}

/// What the policies of one core remember.
#[derive(Debug)]
pub struct Memory<'a> {
    pub limiter: &'a mut ClientLimiter,
    pub tokens: &'a mut TokenCaches,
}

/// Passes a request through the list. On `Reply`, `reply_fields` holds what the reply must carry (`retry-after`,
/// `www-authenticate`, the preflight's answer); else nothing was added.
///
/// # Errors
/// `FieldError` when `reply_fields` would pass 4 GiB.
pub fn evaluate(
    policies: &Policies<'_>,
    subject: &Subject<'_>,
    memory: &mut Memory<'_>,
    reply_fields: &mut Fields,
) -> Result<Verdict, FieldError> {
    let refuse = |status, cause| Ok(Verdict::Reply(Refusal { status, cause }));

    if policies.access.is_some_and(|rules| rules.check(subject.client) == Access::Denied) {
        return refuse(403, Cause::AddressDenied);
    }
    if let Some((scope, limit)) = policies.client_limit
        && let RequestAdmission::RateLimited { retry_after } =
            memory.limiter.request(scope, limit, subject.client, subject.now)
    {
        push_retry_after(retry_after, reply_fields)?;
        return refuse(429, Cause::RateLimited);
    }
    if BodyMeter::new(policies.body_bytes_max).announced(subject.body).is_err() {
        return refuse(413, Cause::BodyTooLarge);
    }
    match policies.cors.map(|cors| (cors, cors.classify(subject.head))) {
        Some((cors, CorsRequest::Preflight)) => {
            cors.answer_preflight(subject.head, reply_fields)?;
            return refuse(204, Cause::CorsPreflight);
        }
        Some((_, CorsRequest::PreflightDenied)) => return refuse(403, Cause::CorsOriginDenied),
        Some((_, CorsRequest::Plain | CorsRequest::Actual)) | None => {}
    }
    let Some(token) = &policies.token else { return Ok(Verdict::Continue) };
    match token.look_up(&subject.head.fields, subject.unix_now, memory.tokens) {
        Ok(Known::Verified(identity)) => Ok(Verdict::Verified(identity)),
        Ok(Known::Unseen(unseen)) => Ok(Verdict::Unverified(unseen)),
        Err(fault) => refuse_token(token, fault, reply_fields),
    }
}

/// The rest of the list for a request whose token was not seen before: its signature and claims.
///
/// # Errors
/// As [`evaluate`].
pub fn verify_token(
    token: &TokenPolicy<'_>,
    unseen: Unseen,
    subject: &Subject<'_>,
    memory: &mut Memory<'_>,
    reply_fields: &mut Fields,
) -> Result<Verdict, FieldError> {
    match token.verify(&subject.head.fields, unseen, subject.unix_now, memory.tokens) {
        Ok(identity) => Ok(Verdict::Verified(identity)),
        Err(fault) => refuse_token(token, fault, reply_fields),
    }
}

fn refuse_token(
    token: &TokenPolicy<'_>,
    fault: TokenFault,
    reply_fields: &mut Fields,
) -> Result<Verdict, FieldError> {
    token.push_challenge(fault, reply_fields)?;
    Ok(Verdict::Reply(Refusal { status: fault.status(), cause: Cause::Token(fault) }))
}

/// RFC 9110 §10.2.3: whole seconds, so rounded up.
fn push_retry_after(wait: Duration, reply_fields: &mut Fields) -> Result<(), FieldError> {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    reply_fields.push(FieldId::RetryAfter, Decimal::new(seconds).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::cidr::Cidr;
    use crate::client_limit::RequestRate;
    use crate::cors::{AllowedFields, CorsConfig, Credentials, OriginPattern};
    use crate::jwt::TokenProvider;

    struct Fixture {
        access: AddressRules,
        limit: ClientLimit,
        cors: CorsPolicy,
        limiter: ClientLimiter,
        tokens: TokenCaches,
        provider: TokenProvider,
    }

    impl Fixture {
        fn new() -> Self {
            let one = NonZeroU32::MIN;
            Self {
                access: AddressRules::new(
                    None,
                    ["10.0.0.0/8".parse::<Cidr>().unwrap()].into_iter().collect(),
                ),
                limit: ClientLimit {
                    connections_max: None,
                    requests: Some(RequestRate { per_second: one, burst: one }),
                },
                cors: CorsPolicy::new(CorsConfig {
                    origins: vec![OriginPattern::parse("https://app.example").unwrap()],
                    methods: vec!["PUT".into()],
                    allowed_fields: AllowedFields::Requested,
                    exposed_fields: vec![],
                    credentials: Credentials::Omit,
                    max_age_s: None,
                })
                .unwrap(),
                limiter: ClientLimiter::new(NonZeroU32::new(8).unwrap(), [1, 2, 3, 4, 5, 6]),
                tokens: TokenCaches::default(),
                provider: crate::jwt::testing::provider(),
            }
        }

        fn evaluate(
            &mut self,
            client: &str,
            head: &RequestHead,
            body: BodyLength,
            now: Duration,
        ) -> (Verdict, Fields) {
            let policies = Policies {
                access: Some(&self.access),
                client_limit: Some((LimitScope::route(1), &self.limit)),
                body_bytes_max: Some(10),
                cors: Some(&self.cors),
                token: Some(TokenPolicy { provider: &self.provider, scopes: &[] }),
            };
            let client = client.parse().unwrap();
            let subject = Subject { client, head, body, now, unix_now: crate::jwt::testing::NOW };
            let mut fields = Fields::new();
            let mut memory = Memory { limiter: &mut self.limiter, tokens: &mut self.tokens };
            let mut verdict = evaluate(&policies, &subject, &mut memory, &mut fields).unwrap();
            if let (Verdict::Unverified(unseen), Some(token)) = (&verdict, &policies.token) {
                verdict = verify_token(token, *unseen, &subject, &mut memory, &mut fields).unwrap();
            }
            (verdict, fields)
        }
    }

    /// A request that passes every policy.
    fn bearer() -> RequestHead {
        let mut head = RequestHead::default();
        let line = format!("Bearer {}", crate::jwt::testing::token());
        head.fields.push(FieldId::Authorization, line.as_bytes()).unwrap();
        head
    }

    fn preflight(origin: &str) -> RequestHead {
        let mut head = RequestHead::default();
        head.set_method(b"OPTIONS").unwrap();
        head.fields.push_name(b"origin", origin.as_bytes()).unwrap();
        head.fields.push_name(b"access-control-request-method", b"PUT").unwrap();
        head
    }

    fn reply(status: u16, cause: Cause) -> Verdict {
        Verdict::Reply(Refusal { status, cause })
    }

    #[test]
    fn the_first_policy_that_objects_answers() {
        let ours = preflight("https://app.example");
        let evil = preflight("https://evil.example");
        let plain = RequestHead::default();
        let (short, long) = (BodyLength::Exact(10), BodyLength::Exact(11));
        // Each line objects on every count from its own on; `spent` is a client whose bucket is empty.
        let table = [
            ("10.1.1.1", &evil, long, reply(403, Cause::AddressDenied)),
            ("spent", &evil, long, reply(429, Cause::RateLimited)),
            ("192.0.2.1", &evil, long, reply(413, Cause::BodyTooLarge)),
            ("192.0.2.2", &evil, short, reply(403, Cause::CorsOriginDenied)),
            ("192.0.2.3", &ours, short, reply(204, Cause::CorsPreflight)),
            ("192.0.2.4", &plain, short, reply(401, Cause::Token(TokenFault::Missing))),
            ("192.0.2.5", &bearer(), short, Verdict::Verified(Rc::new(crate::jwt::testing::identity()))),
        ];
        let mut fixture = Fixture::new();
        let spent = "192.0.2.99";
        let first = fixture.evaluate(spent, &bearer(), short, Duration::ZERO).0;
        assert!(matches!(first, Verdict::Verified(_)), "{first:?}");
        for (client, head, body, expected) in table {
            let client = if client == "spent" { spent } else { client };
            let (verdict, fields) = fixture.evaluate(client, head, body, Duration::ZERO);
            assert_eq!(verdict, expected, "{client}");
            let has_fields = matches!(
                verdict,
                Verdict::Reply(Refusal {
                    cause: Cause::RateLimited | Cause::CorsPreflight | Cause::Token(_),
                    ..
                })
            );
            assert_eq!(!fields.is_empty(), has_fields, "{client}");
        }
    }

    #[test]
    fn retry_after_is_in_whole_seconds_and_long_enough() {
        let mut fixture = Fixture::new();
        let head = bearer();
        let ask = |f: &mut Fixture, ms| {
            f.evaluate("192.0.2.1", &head, BodyLength::Empty, Duration::from_millis(ms))
        };
        assert!(matches!(ask(&mut fixture, 0).0, Verdict::Verified(_)));
        for ms in [0, 1, 500, 999] {
            let (verdict, fields) = ask(&mut fixture, ms);
            assert_eq!(verdict, reply(429, Cause::RateLimited));
            assert_eq!(fields.get(FieldId::RetryAfter), Some(&b"1"[..]), "after {ms} ms");
        }
        assert!(matches!(ask(&mut fixture, 1000).0, Verdict::Verified(_)));
    }

    #[test]
    fn no_policies_let_everything_pass() {
        let mut limiter = ClientLimiter::new(NonZeroU32::MIN, [1, 2, 3, 4, 5, 6]);
        let head = preflight("https://evil.example");
        let subject = Subject {
            client: "10.0.0.1".parse().unwrap(),
            head: &head,
            body: BodyLength::Exact(u64::MAX),
            now: Duration::ZERO,
            unix_now: Duration::ZERO,
        };
        let mut fields = Fields::new();
        let mut tokens = TokenCaches::default();
        let mut memory = Memory { limiter: &mut limiter, tokens: &mut tokens };
        assert_eq!(evaluate(&Policies::default(), &subject, &mut memory, &mut fields), Ok(Verdict::Continue));
        assert_eq!((limiter.clients(), fields.len()), (0, 0));
    }
}
