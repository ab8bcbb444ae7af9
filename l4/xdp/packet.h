// From bytes to `struct packet`: which flow, which kind. Nothing is looked up and nothing is written here.
#pragma once

#include "maps.h"
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <linux/icmp.h>
#include <linux/icmpv6.h>
#include <bpf/bpf_endian.h>

// A branch that a busy packet does not take: moved out of its way.
#define rare(condition) __builtin_expect(!!(condition), 0)

#define ETH_VLAN bpf_htons(0x8100)
#define ETH_IPV4 bpf_htons(ETH_P_IP)
#define ETH_IPV6 bpf_htons(ETH_P_IPV6)
#define IP4_FRAGMENT bpf_htons(0x3fff) // more fragments, or an offset
#define IP4_DF bpf_htons(0x4000)

enum kind {
	KIND_FLOW,       // TCP or UDP of a flow that may exist
	KIND_SYN,        // TCP SYN without ACK
	KIND_ICMP_ERROR, // source, destination and ports are those of the quoted flow, as its client sends them
	KIND_ECHO,       // ICMP echo request
	KIND_FRAGMENT,   // no ports
	KIND_OPTIONS,    // IPv4 options or an IPv6 extension header; no ports
	KIND_TUNNEL,     // IP in IP or GUE for this host's tunnel address
	KIND_OTHER,      // nothing that a VIP takes
	KIND_BAD,        // headers that contradict each other or the frame
};

// Passed by pointer to inlined functions, where clang keeps it in registers; functions that are not inlined get a
// copy made at the call, lest all fields live in memory on the busy path too.
struct packet {
	__u32 source[4]; // IPv4: [0] alone
	__u32 destination[4];
	__u32 ports; // as they stand in a TCP or UDP header
	__u32 l2_bytes;
	__u32 ip_bytes; // header included, as the IP header says
	__u32 kind;
	__u32 v6;
	__u32 tos; // DSCP and ECN
	__u32 tunnel_bytes; // KIND_TUNNEL: what stands before the inner packet
	__u8 protocol; // of the flow
};

static __always_inline void *start_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data;
}

static __always_inline void *end_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_end;
}

// TCP and UDP. The flags stand where UDP has no bytes, so that they are read for TCP only.
static __always_inline void parse_ports(struct packet *p, void *l4, void *end, __u32 l4_bytes)
{
	if (p->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;
		if (rare((void *)(tcp + 1) > end || l4_bytes < sizeof(*tcp) || tcp->doff < 5)) {
			p->kind = KIND_BAD;
			return;
		}
		p->ports = *(__u32 *)tcp;
		p->kind = tcp->syn && !tcp->ack ? KIND_SYN : KIND_FLOW;
	} else {
		struct udphdr *udp = l4;
		if (rare((void *)(udp + 1) > end || l4_bytes < sizeof(*udp))) {
			p->kind = KIND_BAD;
			return;
		}
		p->ports = *(__u32 *)udp;
		p->kind = KIND_FLOW;
	}
}

// Swaps the two ports of a word.
static __always_inline __u32 swapped_ports(__u32 ports)
{
	return ports << 16 | ports >> 16;
}

// An ICMP error's quote begins with the packet that a proxy sent: VIP to client. Eight bytes behind its IP header are
// enough (RFC 792). Quotes that carry no ports belong to nobody here.
static __always_inline void parse_quote4(struct packet *p, void *quote, void *end, __u32 quote_bytes)
{
	struct iphdr *ip = quote;
	__u32 *ports = (void *)(ip + 1);
	p->kind = KIND_OTHER;
	if ((void *)(ports + 2) > end || quote_bytes < sizeof(*ip) + 8 || *(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(0x1fff))
		return;
	// The error goes to the sender of what it quotes; anything else is made up.
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return;
	if (ip->saddr != p->destination[0]) {
		p->kind = KIND_BAD;
		return;
	}
	p->source[0] = ip->daddr;
	p->ports = swapped_ports(*ports);
	p->protocol = ip->protocol;
	p->kind = KIND_ICMP_ERROR;
}

static __always_inline void parse_quote6(struct packet *p, void *quote, void *end, __u32 quote_bytes)
{
	struct ipv6hdr *ip = quote;
	__u32 *ports = (void *)(ip + 1);
	p->kind = KIND_OTHER;
	if ((void *)(ports + 2) > end || quote_bytes < sizeof(*ip) + 8 || ip->version != 6)
		return;
	if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP)
		return;
	if (__builtin_memcmp(&ip->saddr, p->destination, 16)) {
		p->kind = KIND_BAD;
		return;
	}
	__builtin_memcpy(p->source, &ip->daddr, 16);
	p->ports = swapped_ports(*ports);
	p->protocol = ip->nexthdr;
	p->kind = KIND_ICMP_ERROR;
}

static __always_inline void parse_icmp4(struct packet *p, void *l4, void *end, __u32 l4_bytes)
{
	struct icmphdr *icmp = l4;
	p->ports = 0;
	if ((void *)(icmp + 1) > end || l4_bytes < sizeof(*icmp))
		p->kind = KIND_BAD;
	else if (icmp->type == ICMP_ECHO)
		p->kind = KIND_ECHO;
	else if (icmp->type == ICMP_DEST_UNREACH || icmp->type == ICMP_TIME_EXCEEDED ||
		 icmp->type == ICMP_PARAMETERPROB)
		parse_quote4(p, icmp + 1, end, l4_bytes - sizeof(*icmp));
	else
		p->kind = KIND_OTHER;
}

static __always_inline void parse_icmp6(struct packet *p, void *l4, void *end, __u32 l4_bytes)
{
	struct icmp6hdr *icmp = l4;
	p->ports = 0;
	if ((void *)(icmp + 1) > end || l4_bytes < sizeof(*icmp))
		p->kind = KIND_BAD;
	else if (icmp->icmp6_type == ICMPV6_ECHO_REQUEST)
		p->kind = KIND_ECHO;
	else if (icmp->icmp6_type >= ICMPV6_DEST_UNREACH && icmp->icmp6_type <= ICMPV6_PARAMPROB)
		parse_quote6(p, icmp + 1, end, l4_bytes - sizeof(*icmp));
	else
		p->kind = KIND_OTHER;
}

static __always_inline void parse4(struct packet *p, void *data, void *end)
{
	struct iphdr *ip = data + p->l2_bytes;
	p->v6 = 0;
	p->kind = KIND_BAD;
	if (rare((void *)(ip + 1) > end))
		return;
	__u32 total = bpf_ntohs(ip->tot_len);
	__u64 frame = end - (void *)ip;
	p->ip_bytes = total;
	p->tos = ip->tos;
	p->source[0] = ip->saddr;
	p->destination[0] = ip->daddr;
	p->protocol = ip->protocol;
	if (rare(total > frame || total < sizeof(*ip)))
		return;
	if (rare(*(__u8 *)ip != 0x45)) {
		p->kind = ip->version == 4 && ip->ihl > 5 ? KIND_OPTIONS : KIND_BAD;
		return;
	}
	if (rare(ip->frag_off & IP4_FRAGMENT)) {
		p->kind = KIND_FRAGMENT;
		return;
	}
	__u32 l4_bytes = total - sizeof(*ip);
	if (p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP)
		parse_ports(p, ip + 1, end, l4_bytes);
	else if (p->protocol == IPPROTO_ICMP)
		parse_icmp4(p, ip + 1, end, l4_bytes);
	else
		p->kind = KIND_OTHER;
	if (p->protocol != IPPROTO_TCP && ip->daddr == config.own4) {
		p->tunnel_bytes = sizeof(*ip);
		if (p->protocol == IPPROTO_IPIP || p->protocol == IPPROTO_IPV6)
			p->kind = KIND_TUNNEL;
		if (p->protocol == IPPROTO_UDP && p->kind == KIND_FLOW && p->ports >> 16 == bpf_htons(GUE_PORT)) {
			p->tunnel_bytes += sizeof(struct udphdr);
			p->kind = KIND_TUNNEL;
		}
	}
}

static __always_inline int is_own6(const __u32 *address)
{
	const volatile __u32 *own = (const volatile __u32 *)config.own6;
	return address[3] == own[3] && address[2] == own[2] && address[1] == own[1] && address[0] == own[0];
}

// A fragment belongs to the protocol that its header names.
static __always_inline void parse_fragment6(struct packet *p, void *header, void *end)
{
	if (header + 8 > end)
		return;
	p->protocol = *(__u8 *)header;
	p->kind = KIND_FRAGMENT;
}

// Extension headers that may stand before TCP or UDP; fragments are told apart.
static __always_inline int is_extension6(__u8 header)
{
	return header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING || header == IPPROTO_DSTOPTS ||
	       header == IPPROTO_AH || header == IPPROTO_MH;
}

static __always_inline void parse6(struct packet *p, void *data, void *end)
{
	struct ipv6hdr *ip = data + p->l2_bytes;
	p->v6 = 1;
	p->kind = KIND_BAD;
	if (rare((void *)(ip + 1) > end))
		return;
	__u32 l4_bytes = bpf_ntohs(ip->payload_len);
	__u64 frame = end - (void *)(ip + 1);
	p->ip_bytes = l4_bytes + sizeof(*ip);
	p->tos = bpf_ntohl(*(__be32 *)ip) >> 20 & 0xff;
	__builtin_memcpy(p->source, &ip->saddr, 16);
	__builtin_memcpy(p->destination, &ip->daddr, 16);
	p->protocol = ip->nexthdr;
	if (rare(l4_bytes > frame || ip->version != 6))
		return;
	if (p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP)
		parse_ports(p, ip + 1, end, l4_bytes);
	else if (p->protocol == IPPROTO_ICMPV6)
		parse_icmp6(p, ip + 1, end, l4_bytes);
	else if (p->protocol == IPPROTO_FRAGMENT)
		parse_fragment6(p, ip + 1, end);
	else if (is_extension6(p->protocol))
		p->kind = KIND_OPTIONS;
	else
		p->kind = KIND_OTHER;
	if (p->protocol != IPPROTO_TCP && is_own6(p->destination)) {
		p->tunnel_bytes = sizeof(*ip);
		if (p->kind == KIND_OTHER && (p->protocol == IPPROTO_IPIP || p->protocol == IPPROTO_IPV6))
			p->kind = KIND_TUNNEL;
		if (p->protocol == IPPROTO_UDP && p->kind == KIND_FLOW && p->ports >> 16 == bpf_htons(GUE_PORT)) {
			p->tunnel_bytes += sizeof(struct udphdr);
			p->kind = KIND_TUNNEL;
		}
	}
}

// One VLAN tag is understood (and kept on what is sent); the card usually takes it off before XDP. What has two tags,
// or is neither IPv4 nor IPv6, is KIND_OTHER.
static __always_inline void parse(struct packet *p, void *data, void *end)
{
	struct ethhdr *eth = data;
	p->kind = KIND_OTHER;
	p->l2_bytes = sizeof(*eth);
	if (rare((void *)(eth + 1) > end))
		return;
	__be16 type = eth->h_proto;
	if (rare(type == ETH_VLAN)) {
		p->l2_bytes += 4;
		if (data + 18 > end)
			return;
		type = *(__be16 *)(data + 16);
	}
	if (type == ETH_IPV4)
		parse4(p, data, end);
	else if (type == ETH_IPV6)
		parse6(p, data, end);
}
