//! C29: endpoints given by name. Names of hosts(5) only, because the tests do not own the machine's name server;
//! what a server may answer is the resolver's own tests' matter.

use tests::{Cluster, Config, PATIENCE, Proxy, origin, wait_until};

#[test]
fn a_cluster_by_name_serves_from_the_start() {
    let origin = origin::echo();
    let endpoint = format!("localhost:{}", origin.address().port());
    let proxy = Proxy::start(Config::with(Cluster::named("u", &endpoint)));
    for _ in 0..10 {
        assert_eq!(proxy.get("/").status, 200);
    }
    let request = origin.wait_request(1);
    assert_eq!(request.field("host"), Some("a.example"), "the client's host, not the endpoint's name");
}

#[test]
fn a_name_that_nobody_knows_takes_its_own_cluster_down_only() {
    let origin = origin::echo();
    let mut config = Config::to(origin.address()).and_cluster(Cluster::named("lost", "nowhere.invalid:80"));
    config.routes.push(tests::Route::prefix("lost", "/lost").to("lost"));
    let proxy = Proxy::start(config);
    let response = proxy.get("/lost");
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(proxy.get("/").status, 200);
}

#[test]
fn a_reload_moves_a_cluster_from_an_address_to_a_name() {
    let (one, two) = (origin::echo(), origin::echo());
    let config = Config::to(one.address());
    let mut proxy = Proxy::start(config.clone());
    assert_eq!(proxy.get("/").status, 200);
    let endpoint = format!("localhost:{}", two.address().port());
    proxy.reload(config.cluster(|cluster| *cluster = Cluster::named("u", &endpoint)));
    // The name was looked up before the config that uses it came into force: no request meets a cluster without.
    wait_until("the name serves", PATIENCE, || {
        assert_eq!(proxy.get("/").status, 200);
        !two.requests().is_empty()
    });
    let before = one.requests().len();
    for _ in 0..5 {
        assert_eq!(proxy.get("/").status, 200);
    }
    assert_eq!(one.requests().len(), before);
}
