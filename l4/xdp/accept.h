// The proxy's half of SYN cookies: XDP checks the cookie that an ACK brings back, and a program behind it, where packets
// are the stack's, has the kernel make a connection of a handshake that it knows nothing of.
//
// A driver hands XDP all packets of a poll before the stack gets the first one, so that what follows an ACK in the same
// poll comes before there is a socket. `connecting` remembers the flow meanwhile.
#pragma once

#include "cookie.h"
#include <linux/pkt_cls.h>

// Handed from XDP to `assign` in front of the frame.
#define GRANT_MAGIC 0x5ec00c1eu
struct grant {
	__u32 magic;
	__u32 meta;
	__u32 vip;
};

// What an ACK is to SYN cookies.
enum acceptance {
	NO_COOKIE,
	COOKIE_GRANTED,  // `assign` is told to make a connection of it
	COOKIE_AGAIN,    // its connection is being made of the packet before
	COOKIE_DISPLACES // it has become a reset
};

static __always_inline __u32 tuple_of(const struct packet *p, struct bpf_sock_tuple *tuple)
{
	if (p->v6) {
		__builtin_memcpy(tuple->ipv6.saddr, p->source, 16);
		__builtin_memcpy(tuple->ipv6.daddr, p->destination, 16);
		tuple->ipv6.sport = p->ports & 0xffff;
		tuple->ipv6.dport = p->ports >> 16;
		return sizeof(tuple->ipv6);
	}
	tuple->ipv4.saddr = p->source[0];
	tuple->ipv4.daddr = p->destination[0];
	tuple->ipv4.sport = p->ports & 0xffff;
	tuple->ipv4.dport = p->ports >> 16;
	return sizeof(tuple->ipv4);
}

// A poll, generously: the 64th part of a second. Less than any client's timer, so that a repeated segment is looked at anew.
#define CONNECTING_POLL_SHIFT 6

// In the fourth word of a TCP header.
#define TCP_ACK_BIT (1 << 20)
#define TCP_RST_BIT (1 << 18)

// Whether this CPU took a cookie of the flow at most so many ticks ago.
__noinline int is_connecting(__u64 hash, __u32 ticks_max)
{
	__u32 zero = 0;
	struct connecting *c = bpf_map_lookup_elem(&connecting, &zero);
	if (!config.cookies || !c)
		return 0;
	__u64 slot = c->slots[hash % CONNECTING_SLOTS];
	return slot >> FLOW_TAG_SHIFT == hash >> FLOW_TAG_SHIFT && now_ticks() - (__u32)slot <= ticks_max;
}

static __always_inline void note_connecting(__u64 hash)
{
	__u32 zero = 0;
	struct connecting *c = bpf_map_lookup_elem(&connecting, &zero);
	if (c)
		c->slots[hash % CONNECTING_SLOTS] =
			(hash & ~(__u64)CONNECTING_TICK_MASK) | (now_ticks() & CONNECTING_TICK_MASK);
}

// The parts of the kernel's types that are read; the loader finds their place in each kernel.
struct sock_common {
	__u32 skc_tw_rcv_nxt;
} __attribute__((preserve_access_index));
struct inet_timewait_sock {
	struct sock_common __tw_common;
} __attribute__((preserve_access_index));
struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
} __attribute__((preserve_access_index));

// The kernel makes no connection in the place of another, and did not see the SYN at which it would have ended that: an
// old one in TIME_WAIT, whose addresses and ports the client uses again, or a half-open one, of a SYN that a box passed on
// before it answered the repeated one. So the ACK becomes the reset that ends it (RFC 1337 section 2, RFC 9293 section
// 3.10.7.4): the client repeats what it said, and then finds the listener. Its cookie shows that it is no stranger.
static __always_inline int displace(struct tcphdr *tcp, void *end, struct bpf_sock *sk)
{
	struct tcp_timewait_sock *old = bpf_skc_to_tcp_timewait_sock(sk);
	if ((void *)(tcp + 1) > end)
		return NO_COOKIE;
	__u32 *words = (__u32 *)tcp;
	// A half-open one has seen no more than the SYN. A reset that acknowledges what it has not said would be ignored.
	__u32 seq = old ? bpf_htonl(old->tw_sk.__tw_common.skc_tw_rcv_nxt) : words[1];
	__u32 flags = (words[3] & ~bpf_htonl(TCP_ACK_BIT)) | bpf_htonl(TCP_RST_BIT);
	__u64 sum = (__u64)(__u16)~tcp->check + (__u32)~words[1] + seq + (__u32)~words[3] + flags;
	words[1] = seq;
	words[3] = flags;
	tcp->check = fold_wide(sum); // RFC 1624
	return COOKIE_DISPLACES;
}

// Whether a packet brings one of our cookies back to a listener here; if so, the stack is told in front of the frame.
// The MAC comes first, because no packet of a connection passes it and a look-up costs more. What has TCP options is spared
// it: an answer with a cookie offers none that a client would put on its ACK, while most other connections have timestamps.
__noinline int accept_cookie(struct xdp_md *ctx, const struct packet *p, __u64 hash, __u32 vip)
{
	if (!config.cookies || !p)
		return NO_COOKIE;
	__u32 l2_bytes = p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14;
	struct tcphdr *tcp = start_of(ctx) + l2_bytes + (p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if ((void *)(tcp + 1) > end_of(ctx) || tcp->doff != 5 || !tcp->ack || tcp->syn || tcp->rst)
		return NO_COOKIE;
	__u32 cookie = bpf_ntohl(tcp->ack_seq) - 1, first = bpf_ntohl(tcp->seq) - 1;
	__u32 meta = cookie & ((1 << COOKIE_META_BITS) - 1), now = cookie_period();
	// A box whose clock is ahead may have made it in the period to come.
	__u32 age = (now + 1 - meta) & 3;
	if (age == 3 || cookie != cookie_for(p, first, now + 1 - age, meta))
		return NO_COOKIE;
	if (is_connecting(hash, config.window_ticks >> CONNECTING_POLL_SHIFT))
		return COOKIE_AGAIN;
	struct bpf_sock_tuple tuple = {};
	__u32 size = tuple_of(p, &tuple), state = 0;
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	int found = NO_COOKIE;
	if (sk) {
		state = sk->state;
		if (state == BPF_TCP_TIME_WAIT || state == BPF_TCP_NEW_SYN_RECV)
			found = displace(tcp, end_of(ctx), sk);
		bpf_sk_release(sk);
	}
	if (state != BPF_TCP_LISTEN) {
		if (!sk)
			count(vip, DECISION_COOKIE_FAILED);
		return found;
	}
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct grant)))
		return NO_COOKIE;
	struct grant *grant = (void *)(long)ctx->data_meta;
	if ((void *)(grant + 1) > start_of(ctx))
		return NO_COOKIE;
	grant->magic = GRANT_MAGIC;
	grant->meta = meta;
	grant->vip = vip;
	note_connecting(hash);
	return COOKIE_GRANTED;
}

// What the kernel makes a connection of; `struct bpf_tcp_req_attrs` of Linux 6.9, which its headers do not export.
struct connection_attributes {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

// A call of the kernel function bpf_sk_assign_tcp_reqsk. The loader writes the function's number, which each kernel
// has its own of, over ASSIGN_PLACE; written in bytes, because the loader's library relocates no kernel functions.
#define ASSIGN_PLACE "0x5ec0ca11"
static __always_inline int assign_connection(struct __sk_buff *skb, struct tcp_sock *listener,
					     struct connection_attributes *attributes)
{
	register long failed asm("r0");
	register struct __sk_buff *first asm("r1") = skb;
	register struct tcp_sock *second asm("r2") = listener;
	register struct connection_attributes *third asm("r3") = attributes;
	register long fourth asm("r4") = sizeof(*attributes);
	asm volatile(".byte 0x85, 0x20, 0, 0\n.long " ASSIGN_PLACE
		     : "=r"(failed), "+r"(first), "+r"(second), "+r"(third), "+r"(fourth)
		     :
		     : "r5", "memory");
	return failed;
}

// Behind XDP, where packets are the stack's: an ACK that XDP vouches for becomes a connection of its listener. One of
// which none comes is reset by the stack, which knows nothing of the handshake.
SEC("classifier")
int assign(struct __sk_buff *skb)
{
	struct grant *grant = (void *)(long)skb->data_meta;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if ((void *)(grant + 1) > data || grant->magic != GRANT_MAGIC)
		return TC_ACT_UNSPEC;
	struct packet p = {};
	__u32 meta = grant->meta, scale = meta >> 5 & 15, vip = grant->vip;
	parse(&p, data, end);
	if (p.kind != KIND_FLOW || p.protocol != IPPROTO_TCP)
		return TC_ACT_UNSPEC;
	struct connection_attributes attributes = {
		.mss = class_mss(meta >> 2 & 3, p.v6),
		.sack_ok = meta >> 4 & 1,
		.wscale_ok = scale != COOKIE_NO_SCALE,
	};
	if (attributes.wscale_ok) {
		attributes.rcv_wscale = COOKIE_OWN_SCALE;
		attributes.snd_wscale = scale;
	}
	struct bpf_sock_tuple tuple = {};
	__u32 size = tuple_of(&p, &tuple);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	int failed = !sk;
	if (sk) {
		if (sk->state == BPF_TCP_LISTEN) {
			struct tcp_sock *listener = bpf_skc_to_tcp_sock(sk);
			failed = !listener || assign_connection(skb, listener, &attributes);
		}
		bpf_sk_release(sk);
	}
	if (failed)
		count(vip, DECISION_COOKIE_FAILED);
	return TC_ACT_UNSPEC;
}
