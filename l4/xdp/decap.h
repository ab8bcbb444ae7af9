// Takes the outer header off a packet that one of our own boxes or proxies sent to this host's tunnel address.
#pragma once

#include "encap.h"

// How a packet came here.
enum arrival {
	ARRIVED_DIRECT,   // from its client
	ARRIVED_TUNNEL,   // encapsulated by an L4 box
	ARRIVED_RESCUED,  // encapsulated by a proxy that has no socket for it, or does not know its flow
	ARRIVED_RETURNED, // encapsulated by a proxy that was asked and does not know its flow either
	ARRIVED_UNTRUSTED,
	ARRIVED_BROKEN,
};

// Whether a packet's source may send encapsulated ones. An IPv6 packet with a v4-mapped source is made up (RFC 4942
// section 2.2): it would be taken for the IPv4 host.
static __always_inline int is_trusted(const struct packet *p)
{
	if (p->v6 && !(p->source[0] | p->source[1]) && p->source[2] == bpf_htonl(0xffff))
		return 0;
	struct prefix_key key = { .prefix_bits = 128 };
	map_address(p, p->source, key.address);
	return bpf_map_lookup_elem(&trusted, &key) != 0;
}

// Congestion that a router marked on the outer header must reach the receiver (RFC 6040 section 4.2): CE on an
// ECN-capable inner packet. The IPv4 checksum follows (RFC 1624).
static __always_inline void mark_congestion(void *inner, void *end, __u32 inner_v6)
{
	if (inner_v6) {
		__be32 *word = inner;
		if ((void *)(word + 1) > end)
			return;
		if (*word & bpf_htonl(3 << 20))
			*word |= bpf_htonl(3 << 20);
		return;
	}
	struct iphdr *ip = inner;
	if ((void *)(ip + 1) > end || !(ip->tos & 3) || (ip->tos & 3) == 3)
		return;
	__u32 added = 3 - (ip->tos & 3);
	__u32 check = bpf_ntohs(ip->check);
	check = check > added ? check - added : check - added + 0xffff;
	ip->check = bpf_htons(check);
	ip->tos |= 3;
}

// Leaves the inner packet in a frame of its own and says how it came. `p` describes the outer packet.
__noinline int strip(struct xdp_md *ctx, const struct packet *p)
{
	if (!p)
		return ARRIVED_BROKEN;
	if (!is_trusted(p))
		return ARRIVED_UNTRUSTED;
	void *data = start_of(ctx), *end = end_of(ctx);
	__u32 l2_bytes = p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14;
	__u32 gone = p->tunnel_bytes;
	void *outer = data + l2_bytes;
	if (gone > 48 || outer + 48 > end) // the shortest inner packet fills the difference
		return ARRIVED_BROKEN;
	__u32 mark = p->v6 ? bpf_ntohl(*(__be32 *)outer) & 0xfffff : bpf_ntohs(((struct iphdr *)outer)->id);
	void *inner = outer + gone;
	if (inner + 1 > end)
		return ARRIVED_BROKEN;
	__u8 version = *(__u8 *)inner >> 4;
	if (version != 4 && version != 6)
		return ARRIVED_BROKEN;
	if ((p->tos & 3) == 3)
		mark_congestion(inner, end, version == 6);

	struct l2 kept;
	if (keep_l2(&kept, ctx, l2_bytes) || bpf_xdp_adjust_head(ctx, gone))
		return ARRIVED_BROKEN;
	data = start_of(ctx);
	if (data + 18 > end_of(ctx))
		return ARRIVED_BROKEN;
	((__u32 *)data)[0] = kept.mac[0];
	((__u32 *)data)[1] = kept.mac[1];
	((__u32 *)data)[2] = kept.mac[2];
	__be16 type = version == 6 ? ETH_IPV6 : ETH_IPV4;
	if (l2_bytes > sizeof(struct ethhdr)) {
		*(__u32 *)(data + 12) = kept.tag;
		*(__be16 *)(data + 16) = type;
	} else {
		*(__be16 *)(data + 12) = type;
	}
	if (mark == (p->v6 ? RESCUE_MARK6 : RESCUE_MARK4))
		return ARRIVED_RESCUED;
	return mark == (p->v6 ? RETURN_MARK6 : RETURN_MARK4) ? ARRIVED_RETURNED : ARRIVED_TUNNEL;
}
