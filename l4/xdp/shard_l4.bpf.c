// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The packet's way through shard-l4, from top to bottom of `steer`. Each header beside this file is one station:
//
//   packet.h  bytes to a flow and a kind          hash.h    the keyed flow hash
//   decap.h   takes our own outer header off      quic.h    connection ids
//   vips.h    whose packet it is                  steer.h   flow table, then Maglev row
//   rules.h   drop rules                          encap.h   puts an outer header on
//   rescue.h  second chance                       count.h   what became of it
//   icmp.h    too big, echo                      cookie.h  SYN cookies, accept.h their ACKs
//
// The path of an established flow is straight code whose only look-ups are in arrays (VIP, flow, owner, two counters,
// settings), which the JIT compiles to a few instructions each; what is rare stands in functions of its own.

#include "vips.h"
#include "rescue.h"
#include "icmp.h"
#include "rules.h"
#include "quic.h"

// Counts what became of a packet, and samples it while the trace is on.
static __always_inline void note(const struct packet *p, __u64 hash, __u32 vip, const struct choice *choice)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	if (s && rare(s->trace_one_in) && bpf_get_prandom_u32() % s->trace_one_in == 0) {
		struct packet copy = *p;
		trace_packet(&copy, hash, vip, choice->id << 16 | choice->decision);
	}
}

static __always_inline int leave(const struct packet *p, __u64 hash, __u32 vip, struct choice *choice, __u32 decision,
				 int action)
{
	choice->decision = decision;
	count(vip, decision);
	note(p, hash, vip, choice);
	return action;
}

// Encapsulates towards the chosen owner.
static __always_inline int forward(struct xdp_md *ctx, const struct packet *p, const struct vip *vip, __u64 hash,
				   struct choice *choice, enum mark mark)
{
	__u32 gue = vip->flags & VIP_GUE;
	__u32 id = vip->id;
	__u32 extra = outer_bytes(choice->owner, gue);
	if (rare(p->ip_bytes + extra > config.mtu_bytes)) {
		struct packet copy = *p;
		if (too_big(ctx, &copy, config.mtu_bytes - extra))
			return leave(p, hash, id, choice, DECISION_TOO_BIG_DROPPED, XDP_DROP);
		return leave(p, hash, id, choice, DECISION_TOO_BIG_SENT, XDP_TX);
	}
	int failed = choice->owner->flags & OWNER_V6 ? encapsulate6(ctx, p, choice->owner, gue, hash, mark)
						     : encapsulate4(ctx, p, choice->owner, gue, hash, mark);
	if (rare(failed))
		return leave(p, hash, id, choice, DECISION_DROP_ERROR, XDP_DROP);
	count_forwarded(id, choice->id, p->ip_bytes, choice->decision);
	note(p, hash, id, choice);
	return XDP_TX;
}

// A packet that stays on this host, unless its connection is elsewhere.
static __always_inline int keep(struct xdp_md *ctx, const struct packet *p, const struct vip *vip, __u64 hash,
				struct choice *choice, enum arrival arrival)
{
	__u32 here = arrival == ARRIVED_DIRECT ? DECISION_LOCAL : DECISION_DECAPSULATED;
	int cookie = NO_COOKIE;
	if (config.cookies && p->protocol == IPPROTO_TCP && p->kind == KIND_FLOW) {
		struct packet copy = *p;
		cookie = accept_cookie(ctx, &copy, hash, vip->id);
		if (cookie == COOKIE_GRANTED)
			return leave(p, hash, vip->id, choice, DECISION_COOKIE_ACCEPTED, XDP_PASS);
		if (cookie == COOKIE_AGAIN)
			return leave(p, hash, vip->id, choice, here, XDP_PASS);
		if (cookie == COOKIE_DISPLACES)
			return leave(p, hash, vip->id, choice, DECISION_COOKIE_DISPLACED, XDP_PASS);
	}
	__u32 decision = second_chance(ctx, p, vip, hash, choice, arrival, here, cookie == COOKIE_LATER);
	if (decision == DECISION_COOKIE_EARLY)
		return leave(p, hash, vip->id, choice, decision, XDP_DROP);
	if (decision != DECISION_RESCUED && decision != DECISION_RETURNED)
		return leave(p, hash, vip->id, choice, decision, XDP_PASS);
	choice->decision = decision;
	return forward(ctx, p, vip, hash, choice, decision == DECISION_RESCUED ? MARK_RESCUED : MARK_RETURNED);
}

static __always_inline int steer(struct xdp_md *ctx, struct packet *p, enum arrival arrival)
{
	struct choice choice = {};
	vip_word word = 0;
	__u64 hash = 0;

	if (rare(p->kind == KIND_BAD))
		return leave(p, 0, 0, &choice, DECISION_DROP_BAD, XDP_DROP);
	if (p->kind <= KIND_ICMP_ERROR) {
		word = vip_of_flow(p);
	} else if (p->kind <= KIND_OPTIONS) {
		struct packet copy = *p;
		__u32 decision = 0;
		word = vip_of_portless(&copy, &decision);
		if (word && decision == DECISION_ECHO_ANSWERED) {
			if (answer_echo(ctx, &copy))
				return leave(p, 0, word, &choice, DECISION_DROP_BAD, XDP_DROP);
			return leave(p, 0, word, &choice, decision, XDP_TX);
		}
		if (word && decision != DECISION_FORWARD_STATELESS)
			return leave(p, 0, word, &choice, decision, XDP_DROP);
	}
	if (!word) {
		if (rare(arrival != ARRIVED_DIRECT))
			return leave(p, 0, 0, &choice, DECISION_DROP_INNER, XDP_DROP);
		count(0, DECISION_NOT_OURS);
		return XDP_PASS;
	}

	struct vip found = { .id = word, .flags = word >> 32 }, *vip = &found;
	hash = flow_hash(p, vip->flags);
	if (rare(arrival != ARRIVED_DIRECT))
		return keep(ctx, p, vip, hash, &choice, arrival);
	if (rare(vip->flags & VIP_RULES)) {
		struct packet copy = *p;
		if (rule_drops(&copy, vip->id))
			return leave(p, hash, vip->id, &choice, DECISION_DROP_RULE, XDP_DROP);
	}

	if (config.cookies && p->kind == KIND_SYN && rare(!syn_passes(vip->id)) && row_is_owned(vip->id, hash)) {
		struct packet copy = *p;
		int failed = send_cookie(ctx, &copy);
		if (!failed)
			return leave(p, hash, vip->id, &choice, DECISION_COOKIE_SENT, XDP_TX);
		if (failed > 0)
			return leave(p, hash, vip->id, &choice, DECISION_DROP_ERROR, XDP_DROP);
	}

	if (!(rare(vip->flags & VIP_QUIC) && by_connection_id(ctx, &choice, p, vip)) &&
	    (p->kind == KIND_SYN || !by_flow(&choice, p, hash)))
		by_row(&choice, p, vip, hash);
	if (rare(!choice.owner))
		return leave(p, hash, vip->id, &choice, DECISION_DROP_NO_OWNER, XDP_DROP);
	if (rare(choice.owner->flags & OWNER_LOCAL))
		return keep(ctx, p, vip, hash, &choice, arrival);
	if (rare(p->kind == KIND_ICMP_ERROR))
		choice.decision = DECISION_FORWARD_ICMP;
	return forward(ctx, p, vip, hash, &choice, MARK_NONE);
}

static __always_inline int run(struct xdp_md *ctx)
{
	struct packet p = {};
	enum arrival arrival = ARRIVED_DIRECT;

	parse(&p, start_of(ctx), end_of(ctx));
	if (rare(p.kind == KIND_TUNNEL)) {
		struct packet copy = p;
		struct choice none = {};
		arrival = strip(ctx, &copy);
		if (arrival == ARRIVED_UNTRUSTED)
			return leave(&p, 0, 0, &none, DECISION_DROP_UNTRUSTED, XDP_DROP);
		if (arrival == ARRIVED_BROKEN)
			return leave(&p, 0, 0, &none, DECISION_DROP_INNER, XDP_DROP);
		parse(&p, start_of(ctx), end_of(ctx));
		if (rare(p.ip_bytes + copy.tunnel_bytes > copy.ip_bytes))
			p.kind = KIND_BAD; // longer than what it came in
	}
	return steer(ctx, &p, arrival);
}

SEC("xdp")
int shard_l4(struct xdp_md *ctx)
{
	return run(ctx);
}

// Never attached: the user side runs it to learn the ticks that flows are stamped with.
SEC("socket")
int ticks(struct __sk_buff *skb)
{
	return now_ticks();
}

// bpf_tcp_check_syncookie is for programs under the GPL; hence the second licence of this folder.
char _license[] SEC("license") = "GPL";
