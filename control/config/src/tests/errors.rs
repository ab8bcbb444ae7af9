//! Every class of error names its file, line, key and way out, and makes no second error. Most cases are in
//! cases.txt; here are those that need several files or a text too long to write down.

use super::{Set, base, errors_of, set, shown, with, with_cluster, with_listener, with_routes};

const WEB: &str = "platform/web.yaml";
const SHOP: &str = "services/shop/service.yaml";

/// A config with one mistake, and what must be said about it.
struct Case<'a> {
    files: Set,
    file: &'a str,
    line: u32,
    key: &'a str,
    message: &'a str,
    fix: &'a str,
}

impl Case<'_> {
    fn check(self) {
        let errors = errors_of(self.files);
        let [error] = errors.as_slice() else {
            panic!("wanted one error ({}: {}), got:\n{}", self.key, self.message, shown(&errors));
        };
        let place = (error.file.as_str(), error.line, error.key.as_str());
        assert_eq!(place, (self.file, self.line, self.key), "{error}");
        assert!(error.message.contains(self.message), "{error}\nwanted: {}", self.message);
        assert!(error.fix.contains(self.fix), "{error}\nwanted fix: {}", self.fix);
    }
}

/// The text of a case goes into a valid config at the place that its kind names; lines are counted from there.
fn case_of<'a>(head: &'a str, text: &str, message: &'a str, fix: &'a str) -> Case<'a> {
    let mut words = head.splitn(3, ' ');
    let mut word = || words.next().expect("kind, line and key");
    let (kind, line, key) = (word(), word().parse::<u32>().expect("a line"), word());
    let (files, file, line) = match kind {
        "platform" => (with(&[(WEB, text)]), WEB, line),
        "listener" => (with_listener(text), WEB, line + 3),
        "service" => (with(&[(SHOP, text)]), SHOP, line),
        "cluster" => (with_cluster(text), SHOP, line + 4),
        "route" => (with_routes(text), SHOP, line + 5),
        other => panic!("no kind {other}"),
    };
    let key = if key == "-" { "" } else { key };
    Case { files, file, line, key, message, fix }
}

/// Checks the cases of a family of cases.txt.
fn check_family(name: &str) {
    let all = include_str!("cases.txt");
    let family = all
        .split("\n## ")
        .find(|family| family.lines().next() == Some(name))
        .expect("the family is in cases.txt");
    let (mut head, mut text, mut message, mut checked) = ("", String::new(), "", 0);
    for line in family.lines().skip(1).filter(|line| !line.is_empty()) {
        if let Some(part) = line.strip_prefix("    ") {
            text.push_str(part);
            text.push('\n');
        } else if let Some(part) = line.strip_prefix("  ! ") {
            message = part;
        } else if let Some(fix) = line.strip_prefix("  ? ") {
            case_of(head, &text, message, fix).check();
            text.clear();
            checked += 1;
        } else {
            head = line;
        }
    }
    assert!(checked >= 6, "only {checked} cases in {name}");
}

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check_family(stringify!($name));
        }
    )*};
}

families! {
    yaml_that_cannot_be_read
    unknown_keys_get_a_suggestion
    values_of_the_wrong_kind
    values_out_of_range
    missing_and_exclusive_keys
    names_hosts_and_paths
    patterns
    addresses
    header_names_and_values
    references
    routes_that_cannot_work
    files_and_certificates
    access_logs
    balancing
    ejection_and_admission
    health_checks
    retries_and_classes
}

#[test]
fn the_base_config_has_no_errors() {
    assert!(errors_of(base()).is_empty(), "{}", shown(&errors_of(base())));
}

#[test]
fn texts_beyond_their_bounds() {
    let deep = "[".repeat(40);
    let key = "[0]".repeat(24);
    let head = format!("service 1 {key}");
    case_of(&head, &deep, "nested deeper", "indentation").check();
    let long_key = format!("{}: 1\n", "k".repeat(300));
    case_of("service 1 -", &long_key, "at most 256 bytes", "shorten").check();
    let long_regex = format!("- match: {{ regex: \"/{}\" }}\n  cluster: main", "a".repeat(1_100));
    let head = "route 1 routes[0].match.regex";
    case_of(head, &long_regex, "longer than 1024 bytes", "shorten").check();
    let long_page = format!("- respond: {{ body: {} }}", "a".repeat(65_537));
    case_of("route 1 routes[0].respond.body", &long_page, "longer than 64 KiB", "upstream").check();
}

#[test]
fn files_that_are_no_text_or_empty() {
    let mut files = base();
    files.insert(SHOP.to_owned(), b"hosts: [a]\nname: \xff\n".to_vec());
    let errors = errors_of(files);
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].file.as_str(), errors[0].message.as_str()), (SHOP, "line 2 is not UTF-8"));
    let errors = errors_of(with(&[(SHOP, "# nothing\n")]));
    assert_eq!((errors.len(), errors[0].message.as_str()), (1, "the file is empty"), "{}", shown(&errors));
}

/// Aliases that would unfold into 10^9 values.
#[test]
fn a_billion_laughs_are_not_laughed() {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip("abcdefgh".chars()) {
        let aliases = vec![format!("*{before}"); 10].join(", ");
        text.push_str(&format!("{name}: &{name} [{aliases}]\n"));
    }
    case_of("service 2 b[0]", &text, "aliases", "repeat the value").check();
}

#[test]
fn references_between_files() {
    let other = "listeners: [wbe]\nhosts: [b.example]\nendpoints: [\"127.0.0.1:1\"]\n";
    Case {
        files: with(&[("services/other/service.yaml", other)]),
        file: "services/other/service.yaml",
        line: 1,
        key: "listeners[0]",
        message: "unknown listener `wbe`",
        fix: "did you mean `web`?",
    }
    .check();
    Case {
        files: with(&[("platform/more.yaml", super::WEB)]),
        file: WEB,
        line: 2,
        key: "listeners.web",
        message: "already in platform/more.yaml:3",
        fix: "keep one",
    }
    .check();
    let foreign = "hosts: [b.example]\nroutes: [{ cluster: shop/main }]\n";
    let files = with(&[("services/other/service.yaml", foreign)]);
    assert!(errors_of(files).is_empty(), "a cluster of another service");
}

#[test]
fn two_services_must_not_claim_the_same_host_and_path() {
    let rival = |hosts: &str, condition: &str| {
        let text = format!("hosts: {hosts}\nendpoints: [\"127.0.0.1:1\"]\nroutes:\n  - match: {condition}\n");
        with(&[("services/basket/service.yaml", &text)])
    };
    let errors = errors_of(rival("[a.example, shop.example]", "{ prefix: / }"));
    assert_eq!(errors.len(), 1, "{}", shown(&errors));
    let error = &errors[0];
    assert_eq!((error.file.as_str(), error.line, error.key.as_str()), (SHOP, 6, "routes[0].match"));
    for part in ["`shop.example`", "`/`", "`basket`", "services/basket/service.yaml:4"] {
        assert!(error.message.contains(part), "{error}");
    }
    let is_free = |hosts, condition| errors_of(rival(hosts, condition)).is_empty();
    assert!(is_free("[b.example]", "{ prefix: / }"));
    assert!(is_free("[shop.example]", "{ prefix: /basket }"));
    assert!(is_free("[shop.example]", "{ path: / }"), "an exact path is another claim");
    assert!(!is_free("[shop.example]", "{ prefix: /, methods: [PUT] }"));
}

#[test]
fn ownership_of_hosts() {
    let owned = |hosts: &str| with(&[("platform/hosts.yaml", &format!("hosts:\n{hosts}"))]);
    let case = |files, message, fix| Case { files, file: SHOP, line: 1, key: "hosts[0]", message, fix };
    case(owned("  a.example: [shop]\n"), "does not list the host `shop.example`", "shop.example: [shop]")
        .check();
    let mut files = owned("  shop.example: [basket]\n  basket.example: [basket]\n");
    let basket = "hosts: [basket.example]\nendpoints: [\"127.0.0.1:1\"]\n";
    files.extend(set(&[("services/basket/service.yaml", basket)]));
    case(files, "does not belong to `shop` (platform/hosts.yaml:2)", "add `shop` there").check();
    Case {
        files: owned("  shop.example: [shop, shopp]\n"),
        file: "platform/hosts.yaml",
        line: 2,
        key: "hosts.\"shop.example\"[1]",
        message: "unknown service `shopp`",
        fix: "did you mean `shop`?",
    }
    .check();
    assert!(errors_of(owned("  shop.example: [shop]\n")).is_empty());
}

#[test]
fn directories() {
    let place = |files: Set| {
        let errors = errors_of(files);
        assert_eq!(errors.len(), 1, "{}", shown(&errors));
        (errors[0].file.clone(), errors[0].fix.clone())
    };
    let bad_name = "hosts: [b.example]\nendpoints: [\"127.0.0.1:1\"]\n";
    for (files, file, fix) in [
        (
            with(&[("services/orders/openapi.yaml", "x: 1\n")]),
            "services/orders",
            "create services/orders/service.yaml",
        ),
        (with(&[("shard.yaml", super::WEB)]), "shard.yaml", "move the content"),
        (set(&[("notes.txt", "")]), ".", "shard.yaml"),
        (with(&[(WEB, "defaults: {}\n")]), "platform", "listeners"),
        (with(&[("services/Bad Name/service.yaml", bad_name)]), "services/Bad Name", "lower-case letters"),
    ] {
        let (named, way_out) = place(files);
        assert_eq!(named, file);
        assert!(way_out.contains(fix), "{way_out}");
    }
}

#[test]
fn all_errors_come_at_once_and_in_order() {
    let files = with(&[
        (WEB, "listeners:\n  web: { address: x, merge_slashes: maybe }\n"),
        (
            SHOP,
            "hosts: [A]\nclusters: { main: { endpoints: [\"1.2.3.4\"] } }\nroutes:\n  - cluster: mian\n    timeout: 1y\n",
        ),
    ]);
    let errors = errors_of(files);
    let places: Vec<(&str, u32)> = errors.iter().map(|e| (e.file.as_str(), e.line)).collect();
    let wanted = [(WEB, 2), (WEB, 2), (SHOP, 1), (SHOP, 2), (SHOP, 4), (SHOP, 5)];
    assert_eq!(places, wanted, "{}", shown(&errors));
}

#[test]
fn a_mistake_in_the_defaults_is_reported_once_and_where_it_is() {
    let text = format!(
        "{}defaults:\n  route: {{ error_pages: [{{ status: 503, file: pages/no.html }}] }}\n",
        super::WEB
    );
    let mut files = with_routes("- match: { path: /a }\n- match: { path: /b }");
    files.extend(set(&[(WEB, &text)]));
    let errors = errors_of(files);
    assert_eq!(errors.len(), 1, "{}", shown(&errors));
    assert_eq!((errors[0].file.as_str(), errors[0].line), (WEB, 5));
}

#[test]
fn an_error_prints_on_one_line_with_everything() {
    let errors = errors_of(with_routes("- cluster: main\n  timeout: 45s"));
    assert_eq!(
        errors[0].to_string(),
        "services/shop/service.yaml:7:14: routes[0].timeout: `45s`: above the most allowed value, 30s; \
         fix: write a value from 1ms to 30s"
    );
    let long = format!("- cluster: \"{}\"", "a\\n".repeat(100));
    let errors = errors_of(with_routes(&long));
    assert!(errors[0].value.chars().count() <= 81, "{}", errors[0]);
    assert!(!errors[0].to_string().contains('\n'), "{}", errors[0]);
}
