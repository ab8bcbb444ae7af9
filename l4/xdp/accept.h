// The proxy's half of SYN cookies: XDP checks the cookie that an ACK brings back, and a program behind it, where packets
// are the stack's, has the kernel make a connection of a handshake that it knows nothing of.
//
// A driver hands XDP all packets of a poll before the stack gets the first one, so that what follows an ACK in the same
// poll comes before there is a socket. `connecting` remembers the flow meanwhile.
#pragma once

#include "cookie.h"
#include "hash.h"
#include "vips.h"
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
	COOKIE_GRANTED,   // `assign` is told to make a connection of it
	COOKIE_AGAIN,     // its connection is being made of the packet before
	COOKIE_DISPLACES, // the same, and `assign` ends an earlier connection first
	COOKIE_LATER      // of an answered tuple, but not the first segment: of a connection, or `is_early`
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

static __always_inline __u64 connecting_word(__u64 hash, __u32 cookie)
{
	return (hash >> FLOW_TAG_SHIFT << FLOW_TAG_SHIFT) |
	       (cookie >> CONNECTING_COOKIE_SHIFT) << CONNECTING_TICK_BITS |
	       (now_ticks() & ((1 << CONNECTING_TICK_BITS) - 1));
}

// Whether this CPU took a cookie of the flow at most so many ticks ago.
__noinline int is_connecting(__u64 hash, __u32 ticks_max)
{
	__u32 zero = 0;
	struct connecting *c = bpf_map_lookup_elem(&connecting, &zero);
	if (!config.cookies || !c)
		return 0;
	__u64 slot = c->slots[hash % CONNECTING_SLOTS];
	__u32 ticks = (now_ticks() - slot) & ((1 << CONNECTING_TICK_BITS) - 1);
	return slot >> FLOW_TAG_SHIFT == hash >> FLOW_TAG_SHIFT && ticks <= ticks_max;
}

// Whether it was this cookie, in this poll. Another one is of another connection from the same port, right behind it.
__noinline int is_taken(__u64 hash, __u32 cookie)
{
	__u32 zero = 0;
	struct connecting *c = bpf_map_lookup_elem(&connecting, &zero);
	if (!c || !is_connecting(hash, config.window_ticks >> CONNECTING_POLL_SHIFT))
		return 0;
	return !((c->slots[hash % CONNECTING_SLOTS] ^ connecting_word(hash, cookie)) >> CONNECTING_TICK_BITS);
}

static __always_inline void note_connecting(__u64 hash, __u32 cookie)
{
	__u32 zero = 0;
	struct connecting *c = bpf_map_lookup_elem(&connecting, &zero);
	if (c)
		c->slots[hash % CONNECTING_SLOTS] = connecting_word(hash, cookie);
}

// The parts of the kernel's types that are read; the loader finds their place in each kernel.
struct sock_common {
	__u32 skc_tw_rcv_nxt;
	__u32 skc_tw_snd_nxt;
} __attribute__((preserve_access_index));
struct inet_timewait_sock {
	struct sock_common __tw_common;
} __attribute__((preserve_access_index));
struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
} __attribute__((preserve_access_index));
struct tcp_sock {
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u64 bytes_received;
	__u64 bytes_acked;
} __attribute__((preserve_access_index));
struct tcp_request_sock {
	__u32 rcv_isn;
	__u32 snt_isn;
} __attribute__((preserve_access_index));

// What `returned_cookie` says of other packets than those that bring a cookie of ours.
#define RETURNED_NONE -1
#define RETURNED_LATER -2 // the bits of the tuple are right, those of the beginning are not

// The meta bits of the cookie that a packet brings back, or one of the above.
static __always_inline int returned_cookie(const struct packet *p, const struct tcphdr *tcp)
{
	if (tcp->doff != 5 || !tcp->ack || tcp->syn || tcp->rst)
		return RETURNED_NONE;
	__u32 cookie = bpf_ntohl(tcp->ack_seq) - 1, first = bpf_ntohl(tcp->seq) - 1;
	__u32 meta = cookie & ((1 << COOKIE_META_BITS) - 1), now = cookie_period();
	// A box whose clock is ahead may have made it in the period to come.
	__u32 age = (now + 1 - meta) & 3;
	if (age == 3)
		return RETURNED_NONE;
	__u32 wrong = cookie ^ cookie_of(cookie_hash(p, now + 1 - age, meta), first, meta);
	if (!wrong)
		return meta;
	return wrong & ((1 << COOKIE_BEGINNING_SHIFT) - 1) ? RETURNED_NONE : RETURNED_LATER;
}

static __always_inline __u32 tcp_at(const struct packet *p)
{
	return (p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14) + (p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

// Bytes each way by which a connection may be ahead of a late copy of its first ACK.
#define LATE_BYTES_MAX (1u << 28)

static __always_inline int goes_on_from(const struct tcphdr *tcp, __u32 received, __u32 sent)
{
	return received - bpf_ntohl(tcp->seq) < LATE_BYTES_MAX && sent - bpf_ntohl(tcp->ack_seq) < LATE_BYTES_MAX;
}

// States of a connection that both sides know of, beside TIME_WAIT (RFC 9293 section 3.3.2).
#define SYNCHRONIZED                                                                                                   \
	(1u << BPF_TCP_ESTABLISHED | 1u << BPF_TCP_FIN_WAIT1 | 1u << BPF_TCP_FIN_WAIT2 | 1u << BPF_TCP_CLOSE_WAIT |    \
	 1u << BPF_TCP_LAST_ACK | 1u << BPF_TCP_CLOSING)

// Whether a socket stands in the place of the connection that a cookie stands for, and is to make room. One in TIME_WAIT
// whose numbers go on from those of the packet, by LATE_BYTES_MAX at most, is the connection itself, which has been and gone:
// the packet is a late copy, and what it asks for must not be done twice. A client that begins anew at a number of chance is
// taken for that one time in 256: its cookie and its own number both have to fall there.
//
// One that is open while its client begins anew is forgotten there (a crash, an address that another host has now): nobody
// but the client's address could bring the cookie back. What is open counts its bytes, so that its beginning is known, however
// much has passed: it is the connection itself if it began at the packet's numbers. As the counts may change while they are
// read, it is spared too if its numbers go on from the packet's.
static __always_inline int is_in_the_way(struct bpf_sock *sk, const struct tcphdr *tcp)
{
	if (sk->state == BPF_TCP_NEW_SYN_RECV)
		return 1;
	if (sk->state == BPF_TCP_TIME_WAIT) {
		struct tcp_timewait_sock *old = bpf_skc_to_tcp_timewait_sock(sk);
		return old && !goes_on_from(tcp, old->tw_sk.__tw_common.skc_tw_rcv_nxt,
					    old->tw_sk.__tw_common.skc_tw_snd_nxt);
	}
	if (sk->state > 31 || !(1u << sk->state & SYNCHRONIZED))
		return 0;
	struct tcp_sock *open = bpf_skc_to_tcp_sock(sk);
	if (!open)
		return 0;
	__u32 received = open->rcv_nxt, sent = open->snd_nxt;
	if (received - (__u32)open->bytes_received == bpf_ntohl(tcp->seq) &&
	    open->snd_una - (__u32)open->bytes_acked == bpf_ntohl(tcp->ack_seq))
		return 0;
	return !goes_on_from(tcp, received, sent);
}

// Whether a packet brings one of our cookies back to a listener here; if so, the stack is told in front of the frame.
// The MAC comes first, because no packet of a connection passes it and a look-up costs more. What has TCP options is spared
// it: an answer with a cookie offers none that a client would put on its ACK, while most other connections have timestamps.
__noinline int accept_cookie(struct xdp_md *ctx, const struct packet *p, __u64 hash, __u32 vip)
{
	if (!config.cookies || !p)
		return NO_COOKIE;
	struct tcphdr *tcp = start_of(ctx) + tcp_at(p);
	if ((void *)(tcp + 1) > end_of(ctx))
		return NO_COOKIE;
	int meta = returned_cookie(p, tcp);
	if (meta < 0)
		return meta == RETURNED_LATER ? COOKIE_LATER : NO_COOKIE;
	__u32 cookie = bpf_ntohl(tcp->ack_seq) - 1;
	if (is_taken(hash, cookie))
		return COOKIE_AGAIN;
	struct bpf_sock_tuple tuple = {};
	__u32 size = tuple_of(p, &tuple);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk) {
		count(vip, DECISION_COOKIE_FAILED);
		return NO_COOKIE;
	}
	int found = sk->state == BPF_TCP_LISTEN ? COOKIE_GRANTED : NO_COOKIE;
	if (is_in_the_way(sk, tcp))
		found = COOKIE_DISPLACES;
	bpf_sk_release(sk);
	if (found == NO_COOKIE || bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct grant)))
		return NO_COOKIE;
	struct grant *grant = (void *)(long)ctx->data_meta;
	if ((void *)(grant + 1) > start_of(ctx))
		return NO_COOKIE;
	grant->magic = GRANT_MAGIC;
	grant->meta = meta;
	grant->vip = vip;
	if (found == COOKIE_GRANTED)
		note_connecting(hash, cookie);
	return found;
}

// Whether an ACK brings a listener a SYN cookie back that the kernel made itself.
static __always_inline int is_kernels_cookie(struct xdp_md *ctx, const struct packet *p, struct bpf_sock *listener)
{
	__u32 ip_bytes = p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	void *ip = start_of(ctx) + (p->l2_bytes > sizeof(struct ethhdr) ? 18 : 14);
	struct tcphdr *tcp = ip + ip_bytes;
	return ip + sizeof(struct ipv6hdr) <= end_of(ctx) && (void *)(tcp + 1) <= end_of(ctx) &&
	       !bpf_tcp_check_syncookie(listener, ip, ip_bytes, tcp, sizeof(*tcp));
}

// Seconds for which early segments of a connection are dropped.
#define EARLY_SECONDS 3

// Whether it is no longer than that since this CPU saw the first early segment of a cookie; there may be none before this. A
// slot is another one's for as long: with more such connections at a time than slots, some are waited for longer, but none
// longer than its cookie is good.
static __always_inline int is_awaited(__u64 hash, __u32 cookie)
{
	__u32 zero = 0;
	struct early *e = bpf_map_lookup_elem(&early, &zero);
	if (!e)
		return 0;
	__u64 now = connecting_word(hash, cookie), slot = e->slots[hash % EARLY_SLOTS];
	__u32 ticks = (now - slot) & ((1 << CONNECTING_TICK_BITS) - 1);
	int is_over = ticks >= EARLY_SECONDS * config.window_ticks;
	if (!((now ^ slot) >> CONNECTING_TICK_BITS))
		return !is_over;
	if (is_over)
		e->slots[hash % EARLY_SLOTS] = now;
	return 1;
}

// Whether a segment that returned_cookie takes for a later one came before the connection is made, because the client's ACK
// and its first segment were lost or are still on their way. The stack, which knows nothing of the handshake, would reset; the
// client repeats its first segment, which makes the connection. But it may be one whose server has never spoken and
// crashed: then the reset is due, soon. By the tuple's bits alone a segment may be here once in 2^7 times by chance; what
// acknowledges the kernel's own number, half-open or its cookie, is the kernel's.
__noinline int is_early(struct xdp_md *ctx, const struct packet *p, __u64 hash)
{
	// The one that makes the connection is on its way to the stack.
	if (!config.cookies || !p || is_connecting(hash, config.window_ticks >> CONNECTING_POLL_SHIFT))
		return 0;
	struct bpf_sock_tuple tuple = {};
	__u32 size = tuple_of(p, &tuple);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	int is_unknown = 0;
	__u32 cookie = 0;
	struct tcphdr *tcp = start_of(ctx) + tcp_at(p);
	if ((void *)(tcp + 1) <= end_of(ctx)) {
		cookie = bpf_ntohl(tcp->ack_seq) - 1;
		struct tcp_request_sock *half_open =
			sk->state == BPF_TCP_NEW_SYN_RECV ? bpf_skc_to_tcp_request_sock(sk) : 0;
		if (half_open)
			is_unknown = half_open->snt_isn != cookie;
		else if (sk->state == BPF_TCP_LISTEN)
			is_unknown = !is_kernels_cookie(ctx, p, sk);
	}
	bpf_sk_release(sk);
	return is_unknown && is_awaited(hash, cookie);
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

// The mark of the copy of an ACK that comes by again, in place of what mark it had; 0 when it goes on.
#define AGAIN_MARK 0x5ec0a9a1

// The kernel makes no connection in the place of another, and did not see the SYN at which it would have ended that: an
// old one in TIME_WAIT, whose addresses and ports the client uses again, or one that is open and forgotten by it, or a
// half-open one, of a SYN that a box passed on before it answered the repeated one. So the ACK is put once more at the end of what this CPU has received, and itself
// becomes the reset that ends the old one (RFC 1337 section 2, RFC 9293 section 3.10.7.4) before its copy is looked at. Its
// cookie shows that it is no stranger. Bytes are written by the kernel's functions: a program that writes by itself would be
// given a copy of a packet that is listened to (tcpdump), without what XDP put in front of it.
static __always_inline int displace(struct __sk_buff *skb, const struct packet *p, const struct tcphdr *tcp,
				    struct bpf_sock *sk)
{
	__be32 old_seq = tcp->seq, old_flags = ((__be32 *)tcp)[3], seq = old_seq;
	// What does not acknowledge is taken by its sequence number alone.
	__be32 flags = (old_flags & ~bpf_htonl(TCP_ACK_BIT)) | bpf_htonl(TCP_RST_BIT);
	__u32 at = tcp_at(p);
	struct tcp_timewait_sock *ended = bpf_skc_to_tcp_timewait_sock(sk);
	struct tcp_request_sock *half_open = ended ? 0 : bpf_skc_to_tcp_request_sock(sk);
	struct tcp_sock *open = ended || half_open ? 0 : bpf_skc_to_tcp_sock(sk);
	if (ended)
		seq = bpf_htonl(ended->tw_sk.__tw_common.skc_tw_rcv_nxt);
	else if (half_open)
		seq = bpf_htonl(half_open->rcv_isn + 1);
	else if (open)
		seq = bpf_htonl(open->rcv_nxt);
	__u32 mark = skb->mark;
	skb->mark = AGAIN_MARK;
	int failed = bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = mark;
	return failed | bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), old_seq, seq, sizeof(seq)) |
	       bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), old_flags, flags, sizeof(flags)) |
	       bpf_skb_store_bytes(skb, at + offsetof(struct tcphdr, seq), &seq, sizeof(seq), 0) |
	       bpf_skb_store_bytes(skb, at + 12, &flags, sizeof(flags), 0);
}

static __always_inline int make_connection(struct __sk_buff *skb, struct bpf_sock *sk, __u32 meta, __u32 v6)
{
	__u32 scale = meta >> 5 & 15;
	struct connection_attributes attributes = {
		.mss = class_mss(meta >> 2 & 3, v6),
		.sack_ok = meta >> 4 & 1,
		.wscale_ok = scale != COOKIE_NO_SCALE,
	};
	if (attributes.wscale_ok) {
		attributes.rcv_wscale = COOKIE_OWN_SCALE;
		attributes.snd_wscale = scale;
	}
	struct tcp_sock *listener = bpf_skc_to_tcp_sock(sk);
	return !listener || assign_connection(skb, listener, &attributes);
}

// Behind XDP, where packets are the stack's: an ACK that XDP vouches for becomes a connection of its listener. One of
// which none comes is reset by the stack, which knows nothing of the handshake. The copy of an ACK that made room has its
// cookie checked again, because what stood in front of it does not outlive copying.
SEC("classifier")
int assign(struct __sk_buff *skb)
{
	struct grant *grant = (void *)(long)skb->data_meta;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	int again = skb->mark == AGAIN_MARK;
	if (!again && ((void *)(grant + 1) > data || grant->magic != GRANT_MAGIC))
		return TC_ACT_UNSPEC;
	struct packet p = {};
	parse(&p, data, end);
	struct tcphdr *tcp = data + tcp_at(&p);
	if (p.kind != KIND_FLOW || p.protocol != IPPROTO_TCP || (void *)(tcp + 1) > end)
		return TC_ACT_UNSPEC;
	__u32 vip, cookie = bpf_ntohl(tcp->ack_seq) - 1;
	int meta;
	__u64 hash = 0;
	if (again) {
		skb->mark = 0;
		vip_word word = vip_of_flow(&p);
		vip = word;
		hash = flow_hash(&p, word >> 32);
		meta = returned_cookie(&p, tcp);
		if (meta < 0)
			return TC_ACT_UNSPEC;
	} else {
		vip = grant->vip;
		meta = grant->meta;
	}
	struct bpf_sock_tuple tuple = {};
	__u32 size = tuple_of(&p, &tuple);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	int failed = !sk, action = TC_ACT_UNSPEC;
	if (sk) {
		__u32 state = sk->state;
		if (state == BPF_TCP_LISTEN) {
			failed = make_connection(skb, sk, meta, p.v6);
		} else if (is_in_the_way(sk, tcp)) {
			// Once: a kernel that keeps the old one (tcp_rfc1337) is not asked for ever.
			failed = again || displace(skb, &p, tcp, sk);
			action = again ? TC_ACT_SHOT : TC_ACT_UNSPEC;
		}
		bpf_sk_release(sk);
		// In generic mode XDP has seen the copy too, and counted it.
		if (again && !failed && state == BPF_TCP_LISTEN && !is_taken(hash, cookie)) {
			note_connecting(hash, cookie);
			count(vip, DECISION_COOKIE_ACCEPTED);
		}
	}
	if (failed)
		count(vip, DECISION_COOKIE_FAILED);
	return action;
}
