// ICMP that this program makes: "too big" towards a client whose packet does not fit with its outer header, and the
// answer to an echo request. Both leave by the port that they came in.
#pragma once

#include "encap.h"

// Of the packet that is too big, its IP header and the first eight bytes behind it are quoted: what every host needs
// to find its connection (RFC 792; RFC 4443 would like more).
#define QUOTE_BYTES 8

static __always_inline __u64 sum_words(const __u32 *words, int count)
{
	__u64 sum = 0;
	for (int i = 0; i < count; i++)
		sum += words[i];
	return sum;
}

static __always_inline __u16 fold_wide(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return fold((sum & 0xffff) + (sum >> 16));
}

// Cuts the frame behind the quote and makes room for the headers of the error.
static __always_inline int reshape(struct xdp_md *ctx, __u32 kept_bytes, __u32 added_bytes)
{
	int frame = ctx->data_end - ctx->data;
	return bpf_xdp_adjust_tail(ctx, (int)kept_bytes - frame) || bpf_xdp_adjust_head(ctx, -(int)added_bytes);
}

static __always_inline int too_big4(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	__u32 l2_bytes = p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14;
	struct iphdr *old = start_of(ctx) + l2_bytes;
	if ((void *)(old + 1) > end_of(ctx) || !(old->frag_off & IP4_DF))
		return -1;
	struct l2 kept;
	if (keep_l2(&kept, ctx, l2_bytes))
		return -1;
	__be32 client = old->saddr, vip = old->daddr;
	__u32 quoted = sizeof(struct iphdr) + QUOTE_BYTES;
	__u32 added = sizeof(struct iphdr) + sizeof(struct icmphdr);
	if (reshape(ctx, l2_bytes + quoted, added))
		return -1;
	void *data = start_of(ctx);
	struct iphdr *ip = data + l2_bytes;
	struct icmphdr *icmp = (void *)(ip + 1);
	if ((void *)(icmp + 1) + quoted > end_of(ctx) || data + 18 > end_of(ctx))
		return -1;
	put_l2_reply(data, &kept, l2_bytes, ETH_IPV4);
	put_ip4(ip, added + quoted, 0, 0, IPPROTO_ICMP, vip, client);
	icmp->type = ICMP_DEST_UNREACH;
	icmp->code = ICMP_FRAG_NEEDED;
	icmp->checksum = 0;
	icmp->un.frag.__unused = 0;
	icmp->un.frag.mtu = bpf_htons(mtu);
	icmp->checksum = fold_wide(sum_words((__u32 *)icmp, (sizeof(*icmp) + sizeof(struct iphdr) + QUOTE_BYTES) / 4));
	return 0;
}

static __always_inline int too_big6(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	__u32 l2_bytes = p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14;
	struct ipv6hdr *old = start_of(ctx) + l2_bytes;
	if ((void *)(old + 1) > end_of(ctx))
		return -1;
	struct l2 kept;
	if (keep_l2(&kept, ctx, l2_bytes))
		return -1;
	__u32 client[4], vip[4];
	__builtin_memcpy(client, &old->saddr, 16);
	__builtin_memcpy(vip, &old->daddr, 16);
	__u32 quoted = sizeof(struct ipv6hdr) + QUOTE_BYTES;
	__u32 added = sizeof(struct ipv6hdr) + sizeof(struct icmp6hdr);
	if (reshape(ctx, l2_bytes + quoted, added))
		return -1;
	void *data = start_of(ctx);
	struct ipv6hdr *ip = data + l2_bytes;
	struct icmp6hdr *icmp = (void *)(ip + 1);
	if ((void *)(icmp + 1) + quoted > end_of(ctx) || data + 18 > end_of(ctx))
		return -1;
	put_l2_reply(data, &kept, l2_bytes, ETH_IPV6);
	__u32 payload = sizeof(*icmp) + quoted;
	put_ip6(ip, payload, 0, 0, IPPROTO_ICMPV6, vip, client);
	icmp->icmp6_type = ICMPV6_PKT_TOOBIG;
	icmp->icmp6_code = 0;
	icmp->icmp6_cksum = 0;
	icmp->icmp6_mtu = bpf_htonl(mtu);
	__u64 sum = sum_words((__u32 *)&ip->saddr, 8) + bpf_htonl(payload) + bpf_htonl(IPPROTO_ICMPV6) +
		    sum_words((__u32 *)icmp, (sizeof(*icmp) + sizeof(struct ipv6hdr) + QUOTE_BYTES) / 4);
	icmp->icmp6_cksum = fold_wide(sum);
	return 0;
}

// Tells the client the largest packet that fits. An error never answers an error (RFC 1122 section 3.2.2).
__noinline int too_big(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	if (!p || (p->kind != KIND_FLOW && p->kind != KIND_SYN) || !may_send_icmp())
		return -1;
	return p->v6 ? too_big6(ctx, p, mtu) : too_big4(ctx, p, mtu);
}

// Turns an echo request into its answer in place. The checksum changes by the type alone (RFC 1624).
__noinline int answer_echo(struct xdp_md *ctx, const struct packet *p)
{
	if (!p)
		return -1;
	void *data = start_of(ctx), *end = end_of(ctx);
	__u32 l2_bytes = p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14;
	__u32 *ip = data + l2_bytes;
	if ((void *)ip + sizeof(struct ipv6hdr) + sizeof(struct icmp6hdr) > end && p->v6)
		return -1;
	if ((void *)ip + sizeof(struct iphdr) + sizeof(struct icmphdr) > end || data + 18 > end)
		return -1;
	struct l2 kept;
	if (keep_l2(&kept, ctx, l2_bytes))
		return -1;
	__be16 type = p->v6 ? ETH_IPV6 : ETH_IPV4;
	put_l2_reply(data, &kept, l2_bytes, type);
	if (p->v6) {
		if ((void *)ip + sizeof(struct ipv6hdr) + sizeof(struct icmp6hdr) > end)
			return -1;
		for (int i = 0; i < 4; i++) {
			ip[2 + i] = p->destination[i];
			ip[6 + i] = p->source[i];
		}
		struct icmp6hdr *icmp = (void *)ip + sizeof(struct ipv6hdr);
		icmp->icmp6_type = ICMPV6_ECHO_REPLY;
		__u32 check = bpf_ntohs(icmp->icmp6_cksum);
		check = check > 0x100 ? check - 0x100 : check + 0xfeff;
		icmp->icmp6_cksum = bpf_htons(check);
		return 0;
	}
	ip[3] = p->destination[0];
	ip[4] = p->source[0];
	struct icmphdr *icmp = (void *)ip + sizeof(struct iphdr);
	icmp->type = ICMP_ECHOREPLY;
	__u32 check = bpf_ntohs(icmp->checksum) + 0x800;
	icmp->checksum = bpf_htons((check & 0xffff) + (check >> 16));
	return 0;
}
