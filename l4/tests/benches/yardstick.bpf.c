// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The yardstick of the bench: a balancer of the plainest kind, out of the kernel's own maps. It costs what a VIP in a
// hash map, flows in an LRU hash map, a ring, owners and counters in arrays cost on this machine at this moment, for the
// program is measured in the same rounds as ours. What the frozen reference took is written down beside what this took
// in the same rounds then (`packets.rs`).
//
// Hence: nothing of l4/xdp is included, and a change here makes the figures in packets.rs worthless.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define RING_ROWS 65537
#define COUNTERS 1024
#define OWNERS 4096
#define COUNTER_ALL 512 // the counters of all packets, beyond those of the VIPs
#define COUNTER_NEW 513
#define COUNTER_ENDED 514

// Set at load, as those of the bench are: how many flows the rounds go through, less one; whether flows are remembered.
const volatile __u32 bench_mask;
const volatile __u32 bench_flows;

static __u32 bench_round;

struct endpoint {
	__u32 address[4];
	__u16 port;
	__u8 protocol;
	__u8 unused;
};

struct flow {
	__u32 source[4];
	__u32 destination[4];
	__u32 ports;
	__u32 protocol;
};

struct memory {
	__u64 owner;
	__u64 seen;
};

struct tally {
	__u64 packets;
	__u64 bytes;
};

struct tunnel {
	__u32 address[4];
	__u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct endpoint);
	__type(value, __u64);
	__uint(max_entries, 512);
} vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow);
	__type(value, struct memory);
	__uint(max_entries, 1 << 20);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, RING_ROWS);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct tunnel);
	__uint(max_entries, OWNERS);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct tally);
	__uint(max_entries, COUNTERS);
} vip_tallies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct tally);
	__uint(max_entries, OWNERS);
} owner_tallies SEC(".maps");

static __always_inline void *start_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data;
}

static __always_inline void *end_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_end;
}

static __always_inline void tally(void *map, __u32 key, __u64 bytes)
{
	struct tally *found = bpf_map_lookup_elem(map, &key);
	if (found) {
		found->packets++;
		found->bytes += bytes;
	}
}

static __always_inline __u32 row_of(const struct flow *flow)
{
	__u64 hash = flow->source[0] * 0x9e3779b97f4a7c15ull ^ flow->ports * 0xbf58476d1ce4e5b9ull;
	hash ^= hash >> 32;
	hash *= 0x94d049bb133111ebull;
	return (hash >> 32) % RING_ROWS;
}

static __always_inline int encapsulate(struct xdp_md *ctx, __u32 source, __u32 destination, __u32 ip_bytes)
{
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct iphdr)))
		return -1;
	struct ethhdr *eth = start_of(ctx);
	struct iphdr *ip = (void *)(eth + 1);
	struct ethhdr *inner = (void *)eth + sizeof(struct iphdr);
	if ((void *)(ip + 1) > end_of(ctx) || (void *)(inner + 1) > end_of(ctx))
		return -1;
	__builtin_memcpy(eth->h_dest, inner->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, inner->h_dest, ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IP);
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->ttl = 64;
	ip->protocol = IPPROTO_IPIP;
	ip->tot_len = bpf_htons(ip_bytes + sizeof(*ip));
	ip->saddr = source;
	ip->daddr = destination;
	__u32 sum = 0;
	for (__u32 word = 0; word < sizeof(*ip) / 2; word++)
		sum += ((__u16 *)ip)[word];
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~((sum & 0xffff) + (sum >> 16));
	return 0;
}

static __always_inline int balance(struct xdp_md *ctx)
{
	void *end = end_of(ctx);
	struct ethhdr *eth = start_of(ctx);
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u64 bytes = end - (void *)eth;
	if ((void *)(tcp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_TCP)
		return XDP_DROP;
	tally(&vip_tallies, COUNTER_ALL, bytes);
	struct endpoint endpoint = { .address = { ip->daddr }, .port = tcp->dest, .protocol = ip->protocol };
	__u64 *vip = bpf_map_lookup_elem(&vips, &endpoint);
	if (!vip) {
		endpoint.port = 0; // a VIP of all ports
		vip = bpf_map_lookup_elem(&vips, &endpoint);
		if (!vip)
			return XDP_PASS;
	}
	struct flow flow = {
		.source = { ip->saddr },
		.destination = { ip->daddr },
		.ports = tcp->source | tcp->dest << 16,
		.protocol = ip->protocol,
	};
	__u32 owner = 0, ip_bytes = bpf_ntohs(ip->tot_len);
	__u8 is_new = tcp->syn;
	if (bench_flows && !is_new) {
		struct memory *known = bpf_map_lookup_elem(&flows, &flow);
		if (known)
			owner = known->owner;
	}
	if (!owner) {
		__u64 now = bpf_ktime_get_ns();
		__u32 row = row_of(&flow);
		__u32 *found = bpf_map_lookup_elem(&ring, &row);
		if (!found)
			return XDP_DROP;
		owner = *found;
		tally(&vip_tallies, COUNTER_NEW, bytes);
		struct memory memory = { .owner = owner, .seen = now };
		if (bench_flows)
			bpf_map_update_elem(&flows, &flow, &memory, BPF_ANY);
	}
	struct tunnel *to = bpf_map_lookup_elem(&owners, &owner);
	if (!to)
		return XDP_DROP;
	tally(&vip_tallies, *vip, ip_bytes);
	tally(&owner_tallies, owner, ip_bytes);
	if (encapsulate(ctx, flow.source[0] ^ flow.ports, to->address[0], ip_bytes))
		return XDP_DROP;
	return XDP_TX;
}

// The same around it as in bench.bpf.c: the flow varies, the outer header is taken off and the link header put back.
SEC("xdp")
int yardstick(struct xdp_md *ctx)
{
	struct iphdr *ip = start_of(ctx) + sizeof(struct ethhdr);
	if ((void *)(ip + 1) > end_of(ctx))
		return XDP_ABORTED;
	if (bench_mask)
		ip->saddr = bpf_htonl(0x0a000000 | (bench_round++ & bench_mask));
	__u64 bytes = end_of(ctx) - start_of(ctx);
	int action = balance(ctx);
	tally(&vip_tallies, COUNTER_ENDED, bytes);
	if (action != XDP_TX)
		return action;
	if (bpf_xdp_adjust_head(ctx, sizeof(struct iphdr)))
		return XDP_ABORTED;
	__u32 *words = start_of(ctx);
	if ((void *)words + sizeof(struct ethhdr) > end_of(ctx))
		return XDP_ABORTED;
	words[0] = 0x00000002;
	words[1] = 0x00020100;
	words[2] = 0x02000000;
	*(__be16 *)(words + 3) = bpf_htons(ETH_P_IP);
	return action;
}

char _license[] SEC("license") = "GPL";
