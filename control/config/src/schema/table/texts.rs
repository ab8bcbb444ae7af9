//! The rules for texts, each with a name and an example for the reference.

use super::super::Rule;
use crate::rules;

macro_rules! rule {
    ($($name:ident = $check:path, $what:literal, $example:literal;)*) => {$(
        pub(super) static $name: Rule = Rule { what: $what, example: $example, check: $check };
    )*};
}

rule! {
    NAME = rules::name, "name", "orders";
    CLUSTER_REF = rules::cluster_ref, "cluster of this service, or `service/cluster`", "canary";
    HOST = rules::host, "host: exact, `*.suffix` or `*`", "api.example.com";
    ZONE = rules::zone, "name of a zone", "eu-central-1a";
    DNS_NAME = rules::dns_name, "DNS name", "orders.internal";
    PATH = rules::path, "path", "/v1/orders";
    REGEX = rules::regex, "regular expression (Rust regex crate, at most 1,024 bytes)", "/v[0-9]+/.*";
    CIDR = rules::cidr, "CIDR or address", "10.0.0.0/8";
    LISTEN = rules::listen_address, "IP address and port", "0.0.0.0:8080";
    ENDPOINT = rules::endpoint_address, "`address:port` or `dns-name:port`", "10.0.0.7:8080";
    HEADER = rules::header_name, "header name, lower case", "x-tenant";
    SETTABLE = rules::settable_header_name, "header name, lower case, none that frames the message", "x-tenant";
    VALUE = rules::header_value, "header value", "blue";
    METHOD = rules::method, "method", "GET";
    PARAMETER = rules::parameter_name, "parameter name", "version";
    LOG_FILE = rules::absolute_file, "absolute path", "/var/log/shard/access.log";
    MEDIA_TYPE = rules::content_type, "media type", "text/html; charset=utf-8";
    DATE = rules::date, "UTC date", "2027-01-31";
    ORIGIN = rules::origin, "origin: exact, with a `*.` host, or `*`", "https://app.example.com";
    TEMPLATE = rules::log_template, "template with `%field%`s", "%time% %client% \"%method% %path%\" %status%";
    SYSLOG_TAG = rules::syslog_tag, "printable characters without blanks", "shard-proxy";
    SYSLOG = rules::syslog_address, "syslog address", "unix:/dev/log";
    ADDRESS = rules::ip_address, "IP address", "10.0.0.7";
    INTERFACE = rules::interface, "network interface", "eth0";
    ABSOLUTE = rules::absolute_file, "absolute path", "/run/bird/shard-vips.conf";
    ANNOUNCE_LINE = rules::announce_line, "text with `{prefix}`", "route {prefix} blackhole;";
    ISSUER = rules::token_text, "`iss` of tokens, compared byte by byte", "https://issuer.example";
    AUDIENCE = rules::token_text, "`aud` of tokens", "orders";
    TOKEN_TYPE = rules::token_type, "`typ` of tokens", "at+jwt";
    SCOPE = rules::scope, "scope", "orders.read";
    WORD = rules::text, "word of a command", "birdc";
    STATUSES = rules::statuses, "status, or first and last of a range", "200-299";
    GRPC_SERVICE = rules::grpc_service, "gRPC service", "shop.v1.Orders";
    PAYLOAD = rules::payload, "text, at most 1 KiB", "PING";
    COOKIE = rules::cookie_name, "cookie name", "shop-session";
    COOKIE_PATH = rules::cookie_path, "path of a cookie", "/shop";
    UPGRADE = rules::upgrade, "upgrade protocol", "websocket";
}

pub(super) static FILE: Rule =
    Rule { what: "file, relative to the config directory", example: "tls/www.pem", check: rules::file };

pub(super) static KEY_SET: Rule = Rule {
    what: "file, relative to the config directory",
    example: "keys/main.jwks.json",
    check: rules::file,
};

pub(super) static BODY: Rule =
    Rule { what: "text, at most 64 KiB", example: "Back soon.", check: rules::inline_body };
