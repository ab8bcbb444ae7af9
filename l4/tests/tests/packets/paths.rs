//! That these tests reach every decision of the program, with IPv4 packets and with IPv6 ones.

use l4_abi::Decision;
use l4_tests::may_run;
use l4_tests::rig::reached;

use crate::{cookies, datagrams, encapsulated, forward, hostile, icmp, quic, rules, tunnel};

/// Tests by whose runs each decision is reached.
const TESTS: [fn(); 23] = [
    cookies::a_syn_that_has_nowhere_to_go_is_not_answered,
    cookies::an_answer_repeats_what_the_client_offers,
    cookies::an_old_connection_is_told_from_the_cookies_own,
    cookies::forged_cookies_are_packets_without_a_connection,
    cookies::what_comes_before_the_first_segment_is_dropped_for_a_while,
    datagrams::a_flow_that_this_host_had_before_a_change_goes_on_here,
    datagrams::a_flood_of_new_flows_is_not_asked_for,
    datagrams::a_new_flow_is_asked_for_once_and_begins_where_it_comes_back_to,
    encapsulated::strangers_may_not_tunnel_whatever_they_write,
    encapsulated::tunnels_in_tunnels_are_dropped,
    encapsulated::what_does_not_fit_in_its_tunnel_is_dropped,
    forward::a_syn_is_remembered_and_its_flow_stays_with_its_owner,
    forward::inserts_end_at_the_budget_and_forwarding_does_not,
    forward::what_finds_no_room_for_its_header_is_dropped,
    hostile::fragments_are_dropped_unless_their_vip_hashes_addresses_alone,
    hostile::options_and_extension_headers_are_dropped_for_vips_only,
    icmp::a_packet_that_does_not_fit_is_answered_with_the_size_that_does,
    icmp::a_packet_that_may_be_fragmented_is_dropped_and_errors_are_rationed,
    icmp::echo_is_answered_where_the_config_says_so,
    icmp::errors_follow_the_flow_that_they_quote,
    quic::an_id_is_stronger_than_addresses_and_rows,
    rules::a_rule_drops_its_prefix_for_its_vip_until_it_ends,
    tunnel::a_rescued_packet_is_never_sent_on,
];

#[test]
fn every_decision_is_reached_with_both_families() {
    if !may_run("every_decision_is_reached_with_both_families") {
        return;
    }
    let mut all = reached();
    for test in TESTS {
        test();
        all.extend(reached());
    }
    let missing: Vec<_> = Decision::ALL
        .iter()
        .flat_map(|decision| [(decision.name(), false), (decision.name(), true)])
        .filter(|path| !all.contains(path))
        .collect();
    assert!(missing.is_empty(), "decision, IPv6: {missing:?}");
}
