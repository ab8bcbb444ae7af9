// Puts an outer header on: IPv4 or IPv6, plain IP in IP or GUE variant 1 (the inner packet right behind UDP,
// draft-ietf-intarea-gue section 4). The inner packet is not touched: its TTL and DSCP stay, and DSCP and ECN are
// copied to the outer header (RFC 6040 section 4.1).
#pragma once

#include "count.h"

#define OUTER_TTL 64

// Marks of a packet that a proxy sent on: abi.h, RESCUE_MARK4.
enum mark { MARK_NONE, MARK_RESCUED, MARK_RETURNED };

static __always_inline __u16 mark4(enum mark mark)
{
	return mark == MARK_NONE ? 0 : mark == MARK_RESCUED ? RESCUE_MARK4 : RETURN_MARK4;
}

// Without a mark the label is entropy for routers (RFC 6438), which must not look like one.
static __always_inline __u32 mark6(enum mark mark, __u64 hash)
{
	__u32 label = hash & 0xfffff;
	if (mark == MARK_NONE)
		return label == RESCUE_MARK6 || label == RETURN_MARK6 ? label ^ 1 : label;
	return mark == MARK_RESCUED ? RESCUE_MARK6 : RETURN_MARK6;
}

// The frame's addresses and tag, kept while the head moves.
struct l2 {
	__u32 mac[3]; // destination, source
	__u32 tag;
};

// Fails for frames shorter than any IP packet.
static __always_inline int keep_l2(struct l2 *kept, struct xdp_md *ctx, __u32 l2_bytes)
{
	void *data = start_of(ctx);
	if (rare(data + 18 > end_of(ctx)))
		return -1;
	kept->mac[0] = ((__u32 *)data)[0];
	kept->mac[1] = ((__u32 *)data)[1];
	kept->mac[2] = ((__u32 *)data)[2];
	kept->tag = l2_bytes > sizeof(struct ethhdr) ? *(__u32 *)(data + 12) : 0;
	return 0;
}

// Back to the neighbour that it came from: source and destination change places.
static __always_inline void put_l2_reply(void *data, const struct l2 *kept, __u32 l2_bytes, __be16 type)
{
	__u32 *mac = data;
	mac[0] = kept->mac[1] >> 16 | kept->mac[2] << 16;
	mac[1] = kept->mac[2] >> 16 | kept->mac[0] << 16;
	mac[2] = kept->mac[0] >> 16 | kept->mac[1] << 16;
	if (rare(l2_bytes > sizeof(struct ethhdr))) {
		*(__u32 *)(data + 12) = kept->tag;
		*(__be16 *)(data + 16) = type;
	} else {
		*(__be16 *)(data + 12) = type;
	}
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

static __always_inline void put_ip4(struct iphdr *ip, __u32 total, __u32 tos, __u16 id, __u8 protocol, __be32 from,
				    __be32 to)
{
	__u32 first = bpf_htonl(0x45000000 | tos << 16 | total);
	__u32 second = bpf_htons(id) | (__u32)IP4_DF << 16;
	__u32 third = OUTER_TTL | protocol << 8;
	__u64 sum = (__u64)first + second + third + from + to;
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	__u32 *words = (__u32 *)ip;
	words[0] = first;
	words[1] = second;
	words[2] = third | (__u32)fold(sum) << 16;
	words[3] = from;
	words[4] = to;
}

static __always_inline void put_ip6(struct ipv6hdr *ip, __u32 payload, __u32 tos, __u32 label, __u8 protocol,
				    const __u32 *from, const __u32 *to)
{
	__u32 *words = (__u32 *)ip;
	words[0] = bpf_htonl(0x60000000 | tos << 20 | label);
	words[1] = bpf_htonl(payload << 16 | (__u32)protocol << 8 | OUTER_TTL);
	for (int i = 0; i < 4; i++) {
		words[2 + i] = from[i];
		words[6 + i] = to[i];
	}
}

// The source port carries entropy for the receiver's queues; a zero checksum is allowed for tunnels (RFC 6935).
static __always_inline void put_gue(struct udphdr *udp, __u64 hash, __u32 inner_bytes)
{
	udp->source = bpf_htons(0xc000 | (hash >> 48 & 0x3fff));
	udp->dest = bpf_htons(GUE_PORT);
	udp->len = bpf_htons(inner_bytes + sizeof(*udp));
	udp->check = 0;
}

static __always_inline __u32 outer_bytes(const struct owner *to, __u32 gue)
{
	return (to->flags & OWNER_V6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + (gue ? sizeof(struct udphdr) : 0);
}

static __always_inline int encapsulate4(struct xdp_md *ctx, const struct packet *p, const struct owner *to, __u32 gue,
					__u64 hash, enum mark mark)
{
	__u32 extra = sizeof(struct iphdr) + (gue ? sizeof(struct udphdr) : 0);
	__u32 l2_bytes = p->l2_bytes;
	struct l2 kept;
	if (keep_l2(&kept, ctx, l2_bytes) || rare(bpf_xdp_adjust_head(ctx, -(int)extra)))
		return -1;
	void *data = start_of(ctx);
	if (rare(data + 18 + sizeof(struct iphdr) + sizeof(struct udphdr) > end_of(ctx)))
		return -1;
	put_l2_reply(data, &kept, l2_bytes, ETH_IPV4);
	struct iphdr *ip = data + (l2_bytes > sizeof(struct ethhdr) ? 18 : 14);
	__u8 inner = p->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	put_ip4(ip, p->ip_bytes + extra, p->tos, mark4(mark), gue ? IPPROTO_UDP : inner,
		config.own4, *(__be32 *)(to->address + 12));
	if (gue)
		put_gue((struct udphdr *)(ip + 1), hash, p->ip_bytes);
	return 0;
}

static __always_inline int encapsulate6(struct xdp_md *ctx, const struct packet *p, const struct owner *to, __u32 gue,
					__u64 hash, enum mark mark)
{
	__u32 extra = sizeof(struct ipv6hdr) + (gue ? sizeof(struct udphdr) : 0);
	__u32 l2_bytes = p->l2_bytes;
	struct l2 kept;
	if (keep_l2(&kept, ctx, l2_bytes) || rare(bpf_xdp_adjust_head(ctx, -(int)extra)))
		return -1;
	void *data = start_of(ctx);
	if (rare(data + 18 + sizeof(struct ipv6hdr) + sizeof(struct udphdr) > end_of(ctx)))
		return -1;
	put_l2_reply(data, &kept, l2_bytes, ETH_IPV6);
	struct ipv6hdr *ip = data + (l2_bytes > sizeof(struct ethhdr) ? 18 : 14);
	__u8 inner = p->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	__u32 own[4];
	for (int i = 0; i < 4; i++)
		own[i] = ((const volatile __u32 *)config.own6)[i];
	put_ip6(ip, p->ip_bytes + extra - sizeof(*ip), p->tos, mark6(mark, hash), gue ? IPPROTO_UDP : inner, own,
		(const __u32 *)to->address);
	if (gue)
		put_gue((struct udphdr *)(ip + 1), hash, p->ip_bytes);
	return 0;
}
