// Second chance: a packet of a connection that is not here goes once to the proxy that owned its row before, or, from a host
// that does not own the row itself, to the one that does: updates reach the hosts at different times. A datagram
// that is not known there either comes back, once, and begins a flow.
#pragma once

#include "accept.h"
#include "steer.h"

// Whether this host has the connection that a packet (or an ICMP error's quote) belongs to. A listener alone is not
// a connection, unless the ACK completes one of its SYN cookies.
__noinline int has_socket(struct xdp_md *ctx, const struct packet *p)
{
	if (!p)
		return 1;
	struct bpf_sock_tuple tuple = {};
	__u32 size = tuple_of(p, &tuple);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	int found = sk->state != BPF_TCP_LISTEN || (p->kind == KIND_FLOW && is_kernels_cookie(ctx, p, sk));
	bpf_sk_release(sk);
	return found;
}

// Packets that a connection may be asked for.
static __always_inline int is_of_connection(const struct packet *p)
{
	return p->protocol == IPPROTO_TCP && (p->kind == KIND_FLOW || p->kind == KIND_ICMP_ERROR);
}

// Whether the flow table knows a flow as this host's own.
__noinline int owns_flow(__u64 hash)
{
	struct flow_set *set = set_of(hash);
	if (!set)
		return 0;
	__u64 flow = flow_in(set, hash);
	const struct owner *owner = used_owner(flow >> FLOW_OWNER_SHIFT & FLOW_OWNER_MASK);
	__u32 age = age_of(flow, now_units());
	if (!owner || !(owner->flags & OWNER_LOCAL) || age >= config.flow_idle_units)
		return 0;
	if (age || !(flow & FLOW_CONFIRMED))
		touch(hash);
	return 1;
}

// Datagrams whose flow is told by nothing but addresses and ports; an unknown connection id of QUIC begins one.
static __always_inline int is_datagram(const struct packet *p, const struct vip *vip)
{
	return p->protocol == IPPROTO_UDP && (p->kind == KIND_FLOW || p->kind == KIND_FRAGMENT) &&
	       !(vip->flags & VIP_QUIC);
}

// The same for datagrams, which have no socket of their own to tell a flow by: the flow table of the proxy that has it
// stands for one. DECISION_RESCUED: ask the previous owner. DECISION_RETURNED: back to the present one. 0: it stays.
//
// An old flow that no box remembers asks with each of its datagrams, and so does a flood of new ones: questions have a
// budget of their own, so that they take nothing from the flows that are remembered.
__noinline __u32 datagram_chance(__u64 hash, __u32 current, __u32 previous, __u32 arrival, __u32 vip)
{
	if (arrival == ARRIVED_DIRECT && current == previous)
		return 0; // steer.h has remembered it
	if (owns_flow(hash))
		return arrival == ARRIVED_RESCUED ? DECISION_RESCUE_ARRIVED : 0;
	const struct owner *owner = used_owner(current);
	int mine = owner && owner->flags & OWNER_LOCAL;
	if (!mine)
		return owner && arrival == ARRIVED_RESCUED ? DECISION_RETURNED : 0;
	const struct owner *other = used_owner(previous);
	if (arrival < ARRIVED_RESCUED && other && !(other->flags & OWNER_LOCAL)) {
		if (may_ask())
			return DECISION_RESCUED;
		count(vip, DECISION_QUESTION_CAPPED);
		return 0;
	}
	if (may_insert())
		remember(hash, current);
	else
		count(vip, DECISION_INSERT_CAPPED);
	return 0;
}

// What to do with a packet that belongs to this host by row or by flow: DECISION_RESCUED or DECISION_RETURNED with the
// other owner in `choice`; or `here`, the decision of a packet that stays; or, of one that is no first segment of an answered
// tuple (`later`), DECISION_COOKIE_EARLY if nobody has its connection yet.
static __always_inline __u32 second_chance(struct xdp_md *ctx, const struct packet *p, const struct vip *vip,
					   __u64 hash, struct choice *choice, enum arrival arrival, __u32 here,
					   int later)
{
	int datagram = is_datagram(p, vip);
	if (!datagram && !is_of_connection(p))
		return here;
	__u32 index = row_of(hash);
	const struct table_page *page = page_of(vip->id, index);
	if (!page)
		return here;
	struct row row = page->rows[index % PAGE_ROWS];
	if (datagram) {
		__u32 decision = datagram_chance(hash, row.current, row.previous, arrival, vip->id);
		if (decision == DECISION_RESCUE_ARRIVED)
			return DECISION_RESCUE_ARRIVED;
		if (decision != DECISION_RESCUED && decision != DECISION_RETURNED)
			return here;
		choice->id = decision == DECISION_RESCUED ? row.previous : row.current;
		choice->owner = used_owner(choice->id);
		if (!choice->owner)
			return here;
		return decision == DECISION_RESCUED ? DECISION_RESCUED : DECISION_RETURNED;
	}
	// The present owner, where that is another host: this host's table is older than the sender's, or the flow is
	// remembered from before a change. Else the previous one.
	const struct owner *present = used_owner(row.current);
	int elsewhere = present && !(present->flags & OWNER_LOCAL);
	// Nobody else can have it while no change drains, so that the lookup is not paid for.
	int asked = arrival >= ARRIVED_RESCUED;
	if (!asked && row.current == row.previous && !elsewhere) {
		if (!later)
			return here;
		struct packet copy = *p;
		return is_early(ctx, &copy, hash) ? DECISION_COOKIE_EARLY : here;
	}
	struct packet copy = *p;
	if (has_socket(ctx, &copy) || is_connecting(hash, config.window_ticks))
		return asked ? DECISION_RESCUE_ARRIVED : here;
	choice->id = elsewhere ? row.current : row.previous;
	choice->owner = used_owner(choice->id);
	if (!asked && choice->owner && !(choice->owner->flags & OWNER_LOCAL)) {
		count_rescue(vip->id, page->version, 1);
		return DECISION_RESCUED;
	}
	if (later && is_early(ctx, &copy, hash))
		return DECISION_COOKIE_EARLY;
	count_rescue(vip->id, page->version, 0);
	return DECISION_RESET;
}
