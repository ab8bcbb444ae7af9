//! Sticky sessions: the options and secrets that their keys become, and what an author is told.

use control_api::envoy::tls::secret;
use control_api::from_any;
use control_api::shard::v1::{ClusterOptions, KEY, Sticky};

use super::{Set, errors_of, loaded, with_cluster};

fn with_keys(keys: &str) -> Set {
    let mut files = with_cluster(keys);
    files.insert("keys/new".to_owned(), vec![1; 32]);
    files.insert("keys/old".to_owned(), vec![2; 64]);
    files.insert("keys/short".to_owned(), vec![3; 31]);
    files
}

#[test]
fn keys_become_options_and_files_become_secrets() {
    let all = "sticky: { keys: [keys/new, keys/old], cookie: sid, path: /shop, max_age: 60s, overlap: 5s, virtual_nodes: 100 }";
    let resources = loaded(with_keys(all)).resources;
    let metadata = resources.clusters[0].metadata.as_ref();
    let any = metadata.and_then(|m| m.typed_filter_metadata.get(KEY)).expect("options");
    let options: ClusterOptions = from_any(any).expect("of this type");
    let seconds = |seconds| Some(control_api::envoy::google::Duration { seconds, nanos: 0 });
    let wanted = Sticky {
        cookie: "sid".to_owned(),
        path: "/shop".to_owned(),
        max_age: seconds(60),
        keys: vec!["cookie-key:keys/new".to_owned(), "cookie-key:keys/old".to_owned()],
        overlap: seconds(5),
        virtual_nodes: Some(100),
    };
    assert_eq!(options.sticky, Some(wanted));
    for name in ["cookie-key:keys/new", "cookie-key:keys/old"] {
        let kind = resources.secrets.get(name).and_then(|secret| secret.r#type.as_ref());
        assert!(matches!(kind, Some(secret::Type::GenericSecret(_))), "{name}");
    }
}

#[test]
fn mistakes_are_told_with_the_way_out() {
    for (keys, message, fix) in [
        ("sticky: { cookie: sid }", "the key `keys` is missing", "add `keys`"),
        ("sticky: { keys: [] }", "without a key", "openssl rand 32"),
        ("sticky: { keys: [keys/short] }", "this file 31", "openssl rand 32"),
        ("sticky: { keys: [keys/none] }", "keys/none cannot be read", "create it"),
        ("sticky: { keys: [keys/new], cookie: \"a b\" }", "not a cookie name", "letters"),
        ("sticky: { keys: [keys/new], path: \"/;\" }", "not a path of a cookie", "without `;`"),
        ("sticky: { keys: [keys/new], overlap: 0s }", "", "1s"),
        ("balance: maglev\nsticky: { keys: [keys/new] }", "`sticky` and `maglev` exclude", "keep one"),
    ] {
        let errors = errors_of(with_keys(keys));
        let found =
            errors.iter().any(|error| error.message.contains(message) && error.to_string().contains(fix));
        assert!(found, "{keys}: {errors:?}");
    }
}

#[test]
fn sessions_go_over_names_too() {
    let mut files = with_keys("sticky: { keys: [keys/new] }");
    let text = "clusters: { main: { endpoints: [\"backend.internal:80\"], sticky: { keys: [keys/new] } } }\n";
    files.insert("services/shop/service.yaml".to_owned(), text.into());
    assert!(loaded(files).resources.clusters.iter().any(|cluster| cluster.name == "shop/main"));
}
