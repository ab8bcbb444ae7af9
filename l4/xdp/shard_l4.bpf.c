// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The packet's way through shard-l4, from top to bottom of `steer`. Each header beside this file is one station:
//
//   packet.h  bytes to a flow and a kind          rules.h   drop rules
//   decap.h   takes our own outer header off      hash.h    the keyed flow hash
//   steer.h   flow table, then Maglev row         quic.h    connection ids
//   rescue.h  second chance                       encap.h   puts an outer header on
//   icmp.h    too big, echo                       count.h   what became of it
//
// Written for the verifier's and the JIT's way of seeing things: the path of an established flow is straight code with
// five map look-ups (VIP, flow, owner, two counters); what is rare stands in functions of its own.

#include "rescue.h"
#include "icmp.h"
#include "rules.h"
#include "quic.h"

static __always_inline const struct vip *vip_at(const struct packet *p, __be16 port, __u8 protocol)
{
	if (p->v6) {
		struct vip6_key key = { .port = port, .protocol = protocol };
		__builtin_memcpy(key.address, p->destination, 16);
		return bpf_map_lookup_elem(&vips6, &key);
	}
	struct vip4_key key = { .address = p->destination[0], .port = port, .protocol = protocol };
	return bpf_map_lookup_elem(&vips4, &key);
}

// The VIP of a TCP or UDP flow: its port's, or the one for all ports.
static __always_inline const struct vip *vip_of_flow(const struct packet *p)
{
	const struct vip *vip = vip_at(p, p->ports >> 16, p->protocol);
	if (vip)
		return vip;
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	return s && rare(s->any_port) ? vip_at(p, 0, p->protocol) : 0;
}

// Counts what became of a packet, and samples it while the trace is on.
static __always_inline void note(const struct packet *p, __u64 hash, __u32 vip, const struct choice *choice)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	if (s && rare(s->trace_one_in) && bpf_get_prandom_u32() % s->trace_one_in == 0)
		trace_packet(p, hash, vip, choice->id << 16 | choice->decision);
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
		if (too_big(ctx, p, config.mtu_bytes - extra))
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
	__u32 decision = second_chance(ctx, p, vip, hash, choice, arrival, here);
	if (decision != DECISION_RESCUED)
		return leave(p, hash, vip->id, choice, decision, XDP_PASS);
	choice->decision = decision;
	return forward(ctx, p, vip, hash, choice, MARK_RESCUED);
}

// Packets without the ports of a flow, for an address of ours. What is not for a VIP goes to the kernel.
static __always_inline int steer_portless(struct xdp_md *ctx, const struct packet *p, const struct vip **vip)
{
	if (p->kind == KIND_ECHO) {
		*vip = vip_at(p, 0, p->protocol);
		return DECISION_ECHO_ANSWERED;
	}
	if (p->kind == KIND_FRAGMENT) {
		*vip = vip_at(p, 0, p->protocol);
		if (*vip && (*vip)->flags & VIP_HASH_ADDRESSES)
			return DECISION_FORWARD_STATELESS;
	}
	*vip = vip_at(p, 0, 0);
	return p->kind == KIND_FRAGMENT ? DECISION_DROP_FRAGMENT : DECISION_DROP_OPTIONS;
}

static __always_inline int steer(struct xdp_md *ctx, struct packet *p, enum arrival arrival)
{
	struct choice choice = {};
	const struct vip *vip = 0;
	__u64 hash = 0;

	if (rare(p->kind == KIND_BAD))
		return leave(p, 0, 0, &choice, DECISION_DROP_BAD, XDP_DROP);
	if (p->kind <= KIND_ICMP_ERROR) {
		vip = vip_of_flow(p);
	} else if (p->kind <= KIND_OPTIONS) {
		__u32 decision = steer_portless(ctx, p, &vip);
		if (vip && decision == DECISION_ECHO_ANSWERED) {
			if (answer_echo(ctx, p))
				return leave(p, 0, vip->id, &choice, DECISION_DROP_BAD, XDP_DROP);
			return leave(p, 0, vip->id, &choice, decision, XDP_TX);
		}
		if (vip && decision != DECISION_FORWARD_STATELESS)
			return leave(p, 0, vip->id, &choice, decision, XDP_DROP);
	}
	if (!vip) {
		if (rare(arrival != ARRIVED_DIRECT))
			return leave(p, 0, 0, &choice, DECISION_DROP_INNER, XDP_DROP);
		count(0, DECISION_NOT_OURS);
		return XDP_PASS;
	}

	hash = flow_hash(p, vip->flags);
	if (rare(arrival != ARRIVED_DIRECT))
		return keep(ctx, p, vip, hash, &choice, arrival);
	if (rare(vip->flags & VIP_RULES) && rule_drops(p, vip->id))
		return leave(p, hash, vip->id, &choice, DECISION_DROP_RULE, XDP_DROP);

	if (!(rare(vip->flags & VIP_QUIC) && by_connection_id(ctx, &choice, p, vip)) &&
	    (p->kind == KIND_SYN || !by_flow(&choice, hash)))
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
	struct choice none = {};

	parse(&p, start_of(ctx), end_of(ctx));
	if (p.kind != KIND_TUNNEL)
		return steer(ctx, &p, ARRIVED_DIRECT);

	int arrival = strip(ctx, &p);
	if (arrival == ARRIVED_UNTRUSTED)
		return leave(&p, 0, 0, &none, DECISION_DROP_UNTRUSTED, XDP_DROP);
	if (arrival == ARRIVED_BROKEN)
		return leave(&p, 0, 0, &none, DECISION_DROP_INNER, XDP_DROP);
	parse(&p, start_of(ctx), end_of(ctx));
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
