//! Zones: localities and options that their keys become, and what an author is told.

use control_api::envoy::cluster::cluster::common_lb_config::LocalityConfigSpecifier;
use control_api::from_any;
use control_api::shard::v1::{ClusterOptions, KEY};

use super::{Set, errors_of, loaded, with};

fn with_main(keys: &str) -> Set {
    let text = format!(
        "clusters: {{ main: {{ {keys} }} }}\nroutes: [{{ match: {{ prefix: / }}, cluster: main }}]\n"
    );
    with(&[("services/shop/service.yaml", &text)])
}

const TWO: &str = "endpoints: [{ address: \"127.0.0.1:1\", zone: b }, { address: \"127.0.0.1:2\", zone: a }, \
                   \"127.0.0.1:3\", { address: \"127.0.0.1:4\", zone: a, priority: 1 }]";

#[test]
fn zones_become_localities_by_priority_and_name() {
    let cluster = loaded(with_main(&format!("{TWO}, zones: {{ traffic: {{ a: 70, b: 30 }} }}")))
        .resources
        .clusters
        .remove(0);
    let localities = &cluster.load_assignment.as_ref().expect("set").endpoints;
    let found: Vec<_> = localities
        .iter()
        .map(|l| (l.priority, l.locality.as_ref().map_or("", |l| l.zone.as_str()), l.lb_endpoints.len()))
        .collect();
    assert_eq!(found, [(0, "", 1), (0, "a", 1), (0, "b", 1), (1, "a", 1)]);
    let common = cluster.common_lb_config.as_ref().expect("set");
    let specifier = common.locality_config_specifier.as_ref();
    assert!(matches!(specifier, Some(LocalityConfigSpecifier::ZoneAwareLbConfig(_))), "{specifier:?}");
    let any = cluster.metadata.as_ref().and_then(|m| m.typed_filter_metadata.get(KEY)).expect("options");
    let options: ClusterOptions = from_any(any).expect("of this type");
    let traffic = options.zones.expect("set").traffic_percent;
    assert_eq!(traffic.into_iter().collect::<Vec<_>>(), [("a".to_owned(), 70), ("b".to_owned(), 30)]);
}

#[test]
fn off_and_defaults_say_nothing_more() {
    for (keys, is_on) in [("zones: true", true), ("zones: {}", true), ("zones: false", false)] {
        let cluster = loaded(with_main(&format!("{TWO}, {keys}"))).resources.clusters.remove(0);
        assert_eq!((cluster.common_lb_config.is_some(), cluster.metadata), (is_on, None), "{keys}");
    }
}

#[test]
fn zones_that_mean_nothing_are_a_warning() {
    let warnings = loaded(with_main("endpoints: [\"127.0.0.1:1\"], zones: true")).warnings;
    assert!(warnings.iter().any(|w| w.message.contains("no endpoint has a `zone`")), "{warnings:?}");
}

#[test]
fn mistakes_are_told_with_the_way_out() {
    for (keys, message, fix) in [
        (&format!("{TWO}, zones: {{ traffic: {{ a: 70, b: 31 }} }}"), "make 101 percent", "make them 100"),
        (&format!("{TWO}, zones: {{ traffic: {{ a: 0, b: 100 }} }}"), "", "1 to 100"),
        (&format!("{TWO}, zones: true, balance: maglev"), "`zones` and `maglev` exclude", "keep one"),
        (
            &format!("{TWO}, zones: true, sticky: {{ keys: [tls/www.key] }}"),
            "`zones` and `sticky` exclude",
            "keep one",
        ),
        (
            &"endpoints: [{ address: \"127.0.0.1:1\", zone: \"\" }]".to_owned(),
            "not a name of a zone",
            "1 to 128 bytes",
        ),
    ] {
        let errors = errors_of(with_main(keys));
        let found = errors.iter().any(|e| e.message.contains(message) && e.to_string().contains(fix));
        assert!(found, "{keys}: {errors:?}");
    }
}
