// Second chance: a packet of a connection that is not here goes once to the proxy that owned its row before.
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
	int found = sk->state != BPF_TCP_LISTEN;
	void *data = start_of(ctx), *end = end_of(ctx);
	void *ip = data + (p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14);
	__u32 ip_bytes = p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (!found && p->kind == KIND_FLOW && ip + sizeof(struct ipv6hdr) + sizeof(struct tcphdr) <= end)
		found = !bpf_tcp_check_syncookie(sk, ip, ip_bytes, ip + ip_bytes, sizeof(struct tcphdr));
	bpf_sk_release(sk);
	return found;
}

// Packets that a connection may be asked for.
static __always_inline int is_of_connection(const struct packet *p)
{
	return p->protocol == IPPROTO_TCP && (p->kind == KIND_FLOW || p->kind == KIND_ICMP_ERROR);
}

// What to do with a packet that belongs to this host by row or by flow: DECISION_RESCUED with the previous owner in
// `choice`, or `here`, the decision of a packet that stays.
static __always_inline __u32 second_chance(struct xdp_md *ctx, const struct packet *p, const struct vip *vip,
					   __u64 hash, struct choice *choice, enum arrival arrival, __u32 here)
{
	if (!is_of_connection(p))
		return here;
	__u32 index = row_of(hash);
	const struct table_page *page = page_of(vip->id, index);
	if (!page)
		return here;
	struct row row = page->rows[index % PAGE_ROWS];
	// Nobody else can have it while no change drains, so that the lookup is not paid for.
	if (arrival != ARRIVED_RESCUED && row.current == row.previous)
		return here;
	struct packet copy = *p;
	if (has_socket(ctx, &copy))
		return arrival == ARRIVED_RESCUED ? DECISION_RESCUE_ARRIVED : here;
	choice->id = row.previous;
	choice->owner = used_owner(row.previous);
	if (arrival != ARRIVED_RESCUED && choice->owner && !(choice->owner->flags & OWNER_LOCAL)) {
		count_rescue(vip->id, page->version, 1);
		return DECISION_RESCUED;
	}
	count_rescue(vip->id, page->version, 0);
	return DECISION_RESET;
}
