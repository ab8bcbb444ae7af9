// The layout that the XDP program and its user side share: map keys, values, constants.
// l4/abi is the same in Rust; its test compiles this header and compares every size, offset and constant.
//
// Addresses and ports are in network order, all else in the host's. An IPv4 address in 16 bytes is v4-mapped
// (::ffff:a.b.c.d, RFC 4291 section 2.5.5.2).
#pragma once

#include <linux/types.h>

#define ABI_VERSION 1

// Bounds. A VIP and an owner are named by their index; index 0 means "none" in both.
#define VIPS_MAX 512
#define OWNERS_MAX 4096
#define TABLE_ROWS 65537
#define PAGE_ROWS 1024
#define TABLE_PAGES 65
#define RULES_MAX 16384
#define TRUSTED_MAX 1024
#define SERVER_IDS_MAX 16384
#define QUIC_CONFIGS 8

// A VIP is found by one of these two keys; port 0 answers for all ports without a VIP of their own.
struct vip4_key {
	__be32 address;
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

struct vip6_key {
	__u8 address[16];
	__be16 port;
	__u8 protocol;
	__u8 zero[5];
};

// struct vip.flags
#define VIP_GUE 1u             // encapsulate in GUE (UDP) instead of IPIP
#define VIP_HASH_ADDRESSES 2u  // flows are hashed by addresses and protocol alone; the only VIPs that take fragments
#define VIP_RULES 4u           // drop rules exist: look them up
#define VIP_QUIC 8u            // UDP is routed by connection id
#define VIP_ECHO 16u           // ICMP echo requests are answered here

struct vip {
	__u32 id; // 1 .. VIPS_MAX - 1: index into tables, vip_counts, rescue_counts; 0 = the slot is empty
	__u32 flags;
};

// VIPs stand in buckets of an array, at the bucket that a multiplication of the key names: an array look-up is a few
// instructions, a hash map's a call of 17 ns. A key that finds its bucket full stands in one of the next ones; a bucket
// that is not full ends the search. Only the last slot is asked for that, so that slots are filled from the first on.
#define VIP_BUCKETS 4096 // as a shift: 64 - 12
#define VIP_BUCKET_SHIFT 52
#define VIP_SLOTS 4
#define VIP_PROBES 4
#define VIP_MIX 0x9e3779b97f4a7c15ull
#define VIP_MIX_SECOND 0xc2b2ae3d27d4eb4full
#define VIP_MIX_THIRD 0x165667b19e3779f9ull

struct vip4_slot {
	struct vip4_key key;
	struct vip vip;
};

struct vip6_slot {
	struct vip6_key key;
	struct vip vip;
};

struct vip4_bucket {
	struct vip4_slot slots[VIP_SLOTS];
};

struct vip6_bucket {
	struct vip6_slot slots[VIP_SLOTS];
};

// struct owner.flags
#define OWNER_USED 1u  // the index means something
#define OWNER_LOCAL 2u // this host: pass up, do not encapsulate
#define OWNER_V6 4u    // the tunnel's address is IPv6

struct owner {
	__u32 flags;
	__u32 zero;
	__u8 address[16]; // where encapsulated packets go
};

// One row of a VIP's table: who owns the flows that hash here, and who owned them before the last change.
struct row {
	__u16 current;
	__u16 previous; // = current while no change drains
};

// Row i stands in element i / PAGE_ROWS of a VIP's inner map. Publishing a table is one update of `tables`.
struct table_page {
	__u32 version; // counts changes, from 1; the same in all pages
	struct row rows[PAGE_ROWS];
};

// The flow table: sets of eight flows in one cache line each, at the set that the flow hash's lower bits name. A flow
// is one word, so that it is read and written whole: the hash's upper half, the owner, whether a second packet came,
// and when the last one was seen.
#define FLOW_WAYS 8
#define FLOW_WAY_BITS 3
#define FLOW_TAG_SHIFT 32
#define FLOW_CONFIRMED (1u << 31)
#define FLOW_OWNER_SHIFT 16
#define FLOW_OWNER_MASK 0xfff
#define FLOW_SEEN_MASK 0xffff
#define FLOW_SEEN_TICKS_SHIFT 8 // `seen` counts units of 256 kernel ticks

struct flow_set {
	__u64 ways[FLOW_WAYS];
};

// One packet, one decision; INSERTS_CAPPED and RULE_EXPIRED are remarks beside a decision.
enum decision {
	DECISION_NOT_OURS,          // passed: not for a VIP (counted at VIP 0)
	DECISION_FORWARD_FLOW,      // encapsulated: the flow table knew the owner
	DECISION_FORWARD_NEW,       // encapsulated: by row, and remembered
	DECISION_FORWARD_STATELESS, // encapsulated: by row, not remembered
	DECISION_FORWARD_QUIC,      // encapsulated: by the connection id's server id
	DECISION_FORWARD_ICMP,      // encapsulated: an ICMP error, by the flow that it quotes
	DECISION_LOCAL,             // passed: this host is the owner
	DECISION_DECAPSULATED,      // passed: arrived encapsulated, belongs here
	DECISION_RESCUED,           // sent to the row's other owner: no socket here, or an unknown flow of datagrams
	DECISION_RESCUE_ARRIVED,    // passed: came from the present owner, and its socket or flow is here
	DECISION_RESET,             // passed: no socket here and nobody else to ask; the kernel resets
	DECISION_ECHO_ANSWERED,     // ICMP echo answered
	DECISION_TOO_BIG_SENT,      // ICMP frag-needed or packet-too-big sent to the client
	DECISION_TOO_BIG_DROPPED,   // dropped: too big, and no ICMP may be sent (no DF, or too many of them)
	DECISION_DROP_RULE,         // dropped by a rule
	DECISION_DROP_BAD,          // dropped: truncated or contradictory headers
	DECISION_DROP_FRAGMENT,     // dropped: a fragment for a VIP that does not take them
	DECISION_DROP_OPTIONS,      // dropped: IPv4 options or IPv6 extension headers
	DECISION_DROP_UNTRUSTED,    // dropped: encapsulated, from a source that may not
	DECISION_DROP_INNER,        // dropped: encapsulated, but not a packet for a VIP (nested tunnels too)
	DECISION_DROP_NO_OWNER,     // dropped: the row or its owner is empty
	DECISION_DROP_ERROR,        // dropped: a helper failed
	DECISION_COOKIE_SENT,       // SYN answered with a cookie
	DECISION_COOKIE_ACCEPTED,   // passed: an ACK with our cookie, to a listener here
	DECISION_INSERT_CAPPED,     // remark: not remembered, because this CPU's inserts are used up
	DECISION_RULE_EXPIRED,      // remark: a rule matched but its time is over
	DECISION_RETURNED,          // sent back to the present owner: a datagram of a flow that this host does not know
	DECISION_COOKIE_FAILED,     // remark: an ACK with our cookie of which no connection came, for want of a listener or else
	DECISION_COOKIE_DISPLACED,  // passed: an ACK with our cookie, an earlier connection stands in its place and is ended
	DECISION_QUESTION_CAPPED,   // remark: the previous owner was not asked, because this CPU's questions are used up
	DECISION_COOKIE_EARLY,      // dropped: a later segment of a connection that its first one, with our cookie, is to make
	DECISIONS,                  // how many
};

// Per CPU, one for each VIP.
struct vip_counts {
	__u64 packets[32]; // by enum decision
	__u64 forwarded_bytes;
};

// Per CPU, one for each owner.
struct owner_counts {
	__u64 packets;
	__u64 bytes;
};

// Per CPU, one for each VIP: second chances since the table `version` was first seen by that CPU.
struct rescue_counts {
	__u64 version;
	__u64 rescued;
	__u64 reset;
};

// Longest-prefix key of encapsulation sources; prefix_bits counts within 128.
struct prefix_key {
	__u32 prefix_bits;
	__u8 address[16];
};

// Longest-prefix key of drop rules; prefix_bits = 32 (the VIP's id is always matched) + bits within 128.
struct rule_key {
	__u32 prefix_bits;
	__u32 vip;
	__u8 address[16];
};

struct rule {
	__u64 expires_ns;    // CLOCK_MONOTONIC; 0 = never
	__u32 packets_per_s; // what passes each second, over all CPUs; 0 = nothing
	__u32 window_s;      // the program's: the second that `used` counts
	__u32 used;          // the program's
	__u32 zero;
	__u64 dropped;       // the program's
};

// QUIC-LB: one configuration for each VIP and each config rotation codepoint, at index vip * QUIC_CONFIGS + codepoint.
#define QUIC_UNUSED 0
#define QUIC_PLAIN 1
#define QUIC_ENCRYPTED 2 // single pass: server id + nonce = 16 bytes, AES-128-ECB

struct quic_config {
	__u8 form;
	__u8 server_id_bytes; // 1 .. 15
	__u8 nonce_bytes;
	__u8 zero;
	__u32 round_keys[44]; // AES-128 key schedule of the encrypted form
};

struct server_id_key {
	__u32 vip;
	__u8 config;
	__u8 bytes; // length of the id
	__u8 zero[2];
	__u8 id[16]; // zero-padded
};

// The one element of `settings`: what may change while the program runs.
struct settings {
	__u32 trace_one_in; // sample one decision in N; 0 = off
	__u32 any_port;     // nonzero while a VIP with port 0 exists: a second lookup pays
};

// One sampled decision in the ring buffer `trace`.
struct trace_event {
	__u64 time_ns; // CLOCK_MONOTONIC
	__u64 flow;    // hash
	__u32 vip;
	__u16 decision;
	__u16 owner;
	__u8 source[16];
	__u8 destination[16];
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 zero;
	__u16 packet_bytes;
};

// Per CPU, the one element of `budgets`: what this CPU may still do in this window.
struct budgets {
	__u32 insert_window;
	__u32 inserts;
	__u32 icmp_window;
	__u32 icmp;
};

// Per CPU: in `syn_budgets` for each VIP, the SYNs of this window; in `questions` one, the datagrams that were asked for.
struct budget {
	__u32 window;
	__u32 used;
};

// Per CPU, the one element of `connecting`: flows whose cookie was taken of late, each the hash's upper half, the upper bits
// of the cookie and the tick.
#define CONNECTING_SLOTS 64
#define CONNECTING_COOKIE_SHIFT 20
#define CONNECTING_TICK_BITS 20
struct connecting {
	__u64 slots[CONNECTING_SLOTS];
};

// Per CPU, the one element of `early`: connections whose later segments came before the first one, each as in `connecting`
// with the tick of the first of them.
#define EARLY_SLOTS 1024
struct early {
	__u64 slots[EARLY_SLOTS];
};

// Constants of one load of the program (`.rodata`); a replaced program brings its own.
#define HASH_KEYS 12
struct config {
	__u64 hash_a[HASH_KEYS]; // keys of the flow hash, two independent lanes
	__u64 hash_b[HASH_KEYS];
	__u64 cookie_key[2];     // of the SYN cookies' MAC
	__be32 own4;             // this host's tunnel addresses; 0 = none
	__u32 mtu_bytes;         // of the link towards the owners: the largest outer packet
	__u8 own6[16];
	__u32 flow_set_mask;     // number of flow sets, a power of two, less one
	__u32 flow_idle_units;   // as `seen` counts
	__u32 window_ticks;      // length of a budget's window: one second
	__u32 inserts_per_window;
	__u32 icmp_per_window;
	__u32 cookies;           // nonzero: SYN cookies are sent and accepted
	__u32 syns_per_window;   // of one VIP; beyond, they are answered with cookies
	__u32 questions_per_window;
};

// A rescued packet carries this in its outer header, so that it is never rescued again: the IPv4 identification (the
// outer packet has DF, so the field is free, RFC 6864 section 4.1) or the IPv6 flow label.
#define RESCUE_MARK4 0x5ec0
#define RESCUE_MARK6 0x5ec0d
// The same of a datagram that was asked for in vain and comes back; it stays where it comes to.
#define RETURN_MARK4 0x5ec1
#define RETURN_MARK6 0x5ec1d

#define GUE_PORT 6080 // RFC-less, IANA "gue"; draft-ietf-intarea-gue section 3
