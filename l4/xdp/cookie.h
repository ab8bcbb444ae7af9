// SYN cookies. Under a flood of SYNs to a VIP the box answers them itself and keeps nothing: what the connection needs
// stands in the sequence number of the answer, under a MAC whose key all boxes and proxies share. accept.h is the
// other half, on the proxy.
//
//   cookie = of the beginning (16 bits) | of the tuple (7) | client's window scale (4) | SACK (1) | MSS class (2) | period (2)
//            `------------- MAC, 23 bits -----------'
//
// One SipHash of tuple, period and the bits below it makes all of the MAC: seven bits of it stand there as they are,
// and two other parts of it are multiplier and addend of a linear hash of the client's initial sequence number. No
// connection is made unless all 23 bits are right. A stranger, who sees no answer, cannot do better than to try: whatever
// number he begins at, the addend alone makes each of the 2^16 values as likely, and the seven bits do not depend on
// it, so that each packet succeeds once in 2^23 times, and n packets at most n times as often.
//
// The seven bits alone show a segment that is of a tuple that was answered, but is not the first one: accept.h. The second
// part is linear and its multiplier odd, so that it differs for all numbers within 2^16 of each other. That is more than
// the window that the answer states: what a client sends before it hears of its first segment is never taken for that.
//
// Timestamps are not offered. The kernel's own cookies are not used: their key belongs to one kernel.
#pragma once

#include "icmp.h"

#define COOKIE_META_BITS 9
#define COOKIE_BEGINNING_SHIFT 16
#define COOKIE_PERIOD_SHIFT 36 // of nanoseconds: 69 s; a cookie is good for one to two of them
#define COOKIE_NO_SCALE 15
#define COOKIE_OWN_SCALE 7 // window scale that the answer states
#define COOKIE_OPTION_BYTES 12
#define COOKIE_OPTIONS_READ 20 // of a SYN, padding included; what follows is not read
#define COOKIE_LINK_BYTES_MAX 1500 // the client's link, for the MSS of the answer
#define COOKIE_OUTER_BYTES_MAX 48

#define SIP_ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))
#define SIP_ROUND(a, b, c, d)                                                                                          \
	do {                                                                                                           \
		a += b;                                                                                                \
		b = SIP_ROTATE(b, 13) ^ a;                                                                             \
		a = SIP_ROTATE(a, 32);                                                                                 \
		c += d;                                                                                                \
		d = SIP_ROTATE(d, 16) ^ c;                                                                             \
		a += d;                                                                                                \
		d = SIP_ROTATE(d, 21) ^ a;                                                                             \
		c += b;                                                                                                \
		b = SIP_ROTATE(b, 17) ^ c;                                                                             \
		c = SIP_ROTATE(c, 32);                                                                                 \
	} while (0)

#define SIP_WORD(word)                                                                                                 \
	do {                                                                                                           \
		d ^= word;                                                                                             \
		SIP_ROUND(a, b, c, d);                                                                                 \
		SIP_ROUND(a, b, c, d);                                                                                 \
		a ^= word;                                                                                             \
	} while (0)

// What cookies of a tuple are made of, by SipHash-2-4 (Aumasson and Bernstein, 2012) of ports, period, addresses and
// `meta`. `period` is when the cookie was made.
__noinline __u64 cookie_hash(const struct packet *p, __u32 period, __u32 meta)
{
	if (!p)
		return 0;
	__u64 one = config.cookie_key[0], two = config.cookie_key[1];
	__u64 a = one ^ 0x736f6d6570736575ull, b = two ^ 0x646f72616e646f6dull;
	__u64 c = one ^ 0x6c7967656e657261ull, d = two ^ 0x7465646279746573ull;
	SIP_WORD((p->ports | (__u64)period << 32));
	__u64 bytes = 18;
	if (p->v6) {
		bytes = 42;
		SIP_WORD((p->source[0] | (__u64)p->source[1] << 32));
		SIP_WORD((p->source[2] | (__u64)p->source[3] << 32));
		SIP_WORD((p->destination[0] | (__u64)p->destination[1] << 32));
		SIP_WORD((p->destination[2] | (__u64)p->destination[3] << 32));
	} else {
		SIP_WORD((p->source[0] | (__u64)p->destination[0] << 32));
	}
	SIP_WORD((bytes << 56 | meta));
	c ^= 0xff;
	for (int i = 0; i < 4; i++)
		SIP_ROUND(a, b, c, d);
	return a ^ b ^ c ^ d;
}

// The cookie. `first` is the client's initial sequence number; the linear hash has parts of `hash` as multiplier and addend.
static __always_inline __u32 cookie_of(__u64 hash, __u32 first, __u32 meta)
{
	__u32 beginning = ((__u32)hash | 1) * first + (__u32)(hash >> 16);
	return beginning << COOKIE_BEGINNING_SHIFT | (__u32)(hash >> 57) << COOKIE_META_BITS | meta;
}

static __always_inline __u32 cookie_period(void)
{
	return bpf_ktime_get_tai_ns() >> COOKIE_PERIOD_SHIFT;
}

// The largest segment that a class stands for. The least ones are what every host takes (RFC 9293 section 3.7.1).
static __always_inline __u32 class_mss(__u32 class, __u32 v6)
{
	if (v6)
		return class == 0 ? 1220 : class == 1 ? 1340 : class == 2 ? 1420 : 1440;
	return class == 0 ? 536 : class == 1 ? 1300 : class == 2 ? 1400 : 1460;
}

// Whether the SYNs of a VIP are still few enough on this CPU, in this second, to be passed on.
static __always_inline int syn_passes(__u32 vip)
{
	struct budget *b = bpf_map_lookup_elem(&syn_budgets, &vip);
	return !b || spend(&b->window, &b->used, config.syns_per_window);
}

// The first four bytes of a TCP option, of which `left` belong to the header. A function of its own, so that the
// verifier takes its result for any number instead of following each layout of options.
__noinline __u32 option_at(struct xdp_md *ctx, __u32 offset, __u32 left)
{
	__u8 bytes[4] = {};
	__u32 count = left < sizeof(bytes) ? left : sizeof(bytes);
	if (!count || bpf_xdp_load_bytes(ctx, offset, bytes, count))
		return 0;
	return bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

// What a SYN's options come to in a cookie's meta bits, without the period; negative for a client whose segments are
// smaller than the least class.
__noinline int offered(struct xdp_md *ctx, __u32 offset, __u32 bytes, __u32 v6)
{
	__u32 mss = class_mss(0, v6), scale = COOKIE_NO_SCALE, sack = 0, at = 0;
	for (int i = 0; i < COOKIE_OPTIONS_READ && at < bytes; i++) {
		__u32 option = option_at(ctx, offset + at, bytes - at);
		__u32 kind = option >> 24, length = option >> 16 & 0xff;
		if (kind == 0)
			break;
		if (kind == 1) {
			at++;
			continue;
		}
		if (length < 2 || length > bytes - at)
			break;
		if (kind == 2 && length == 4)
			mss = option & 0xffff;
		else if (kind == 3 && length == 3)
			scale = (option >> 8 & 0xff) > 14 ? 14 : option >> 8 & 0xff; // RFC 7323 section 2.3
		else if (kind == 4 && length == 2)
			sack = 1;
		at += length;
	}
	if (mss < class_mss(0, v6))
		return -1;
	__u32 class = mss >= class_mss(3, v6) ? 3 : mss >= class_mss(2, v6) ? 2 : mss >= class_mss(1, v6) ? 1 : 0;
	return class << 2 | sack << 4 | scale << 5;
}

// The answer's TCP header behind `ip`, with a fixed place for each option.
static __always_inline void put_syn_ack(struct tcphdr *tcp, __u32 ports, __u32 cookie, __u32 first, __u32 mss)
{
	__u32 *words = (__u32 *)tcp;
	__u32 scale = cookie >> 5 & 15;
	words[0] = swapped_ports(ports);
	words[1] = bpf_htonl(cookie);
	words[2] = bpf_htonl(first + 1);
	words[3] = bpf_htonl(0x80120000 | 0xffff); // 32 bytes; SYN, ACK; the whole window
	words[4] = 0;
	words[5] = bpf_htonl(0x02040000 | mss);
	words[6] = bpf_htonl(cookie & 1 << 4 ? 0x01010402 : 0x01010101);
	words[7] = bpf_htonl(scale != COOKIE_NO_SCALE ? 0x01030300 | COOKIE_OWN_SCALE : 0x01010101);
}

// Turns a SYN into its answer. 0: done; negative: the SYN is as it was; positive: it is lost.
__noinline int send_cookie(struct xdp_md *ctx, const struct packet *p)
{
	if (!p)
		return -1;
	__u32 l2_bytes = p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14;
	__u32 ip_bytes = p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	struct tcphdr *tcp = start_of(ctx) + l2_bytes + ip_bytes;
	if ((void *)(tcp + 1) > end_of(ctx) || tcp->doff < 5)
		return -1;
	__u32 first = bpf_ntohl(tcp->seq);
	int offer = offered(ctx, l2_bytes + ip_bytes + sizeof(*tcp), tcp->doff * 4 - sizeof(*tcp), p->v6);
	if (offer < 0)
		return -1;
	__u32 period = cookie_period();
	__u32 meta = offer | (period & 3);
	__u32 cookie = cookie_of(cookie_hash(p, period, meta), first, meta);
	struct l2 kept;
	__u32 tcp_bytes = sizeof(*tcp) + COOKIE_OPTION_BYTES;
	int frame = ctx->data_end - ctx->data;
	barrier_var(frame); // two pointers, whose difference the verifier knows only as a whole
	// All is written anew, so that the length is made at the front: behind a short SYN there may be no room (veth).
	if (keep_l2(&kept, ctx, l2_bytes) || bpf_xdp_adjust_head(ctx, frame - (int)(l2_bytes + ip_bytes + tcp_bytes)))
		return -1;
	void *data = start_of(ctx), *ip = data + l2_bytes;
	tcp = ip + ip_bytes;
	if ((void *)tcp + sizeof(*tcp) + COOKIE_OPTION_BYTES > end_of(ctx) || ip + sizeof(struct iphdr) > end_of(ctx) ||
	    data + 18 > end_of(ctx))
		return 1;
	__u32 link = config.mtu_bytes - COOKIE_OUTER_BYTES_MAX;
	link = (link < COOKIE_LINK_BYTES_MAX ? link : COOKIE_LINK_BYTES_MAX) - ip_bytes - sizeof(*tcp);
	put_syn_ack(tcp, p->ports, cookie, first, link);
	__u64 sum = sum_words((__u32 *)tcp, (sizeof(*tcp) + COOKIE_OPTION_BYTES) / 4) +
		    bpf_htonl(tcp_bytes) + bpf_htonl(IPPROTO_TCP);
	put_l2_reply(data, &kept, l2_bytes, p->v6 ? ETH_IPV6 : ETH_IPV4);
	if (p->v6) {
		if (ip + sizeof(struct ipv6hdr) > end_of(ctx))
			return 1;
		put_ip6(ip, tcp_bytes, 0, 0, IPPROTO_TCP, p->destination, p->source);
		sum += sum_words(p->source, 4) + sum_words(p->destination, 4);
	} else {
		put_ip4(ip, ip_bytes + tcp_bytes, 0, 0, IPPROTO_TCP, p->destination[0], p->source[0]);
		sum += (__u64)p->source[0] + p->destination[0];
	}
	tcp->check = fold_wide(sum);
	return 0;
}
