// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The program as the bench runs it. The kernel's test run repeats a program on one buffer and does not restore it, so
// that the second round would see the encapsulated packet: `bench` takes the outer header off again. `pair` and
// `empty` do the same work around nothing, for what has to be subtracted.

#include "shard_l4.bpf.c"

// Set at load: how many flows the rounds go through (a power of two, less one); 0 = one flow.
const volatile __u32 bench_mask;

static __u32 bench_round;

// The frame's first 14 bytes, as the bench makes them.
static __always_inline void restore_l2(void *data)
{
	__u32 *words = data;
	words[0] = 0x00000002;
	words[1] = 0x00020100;
	words[2] = 0x02000000;
	*(__be16 *)(data + 12) = ETH_IPV4;
}

static __always_inline int vary_flow(struct xdp_md *ctx)
{
	struct iphdr *ip = start_of(ctx) + sizeof(struct ethhdr);
	if ((void *)(ip + 1) > end_of(ctx))
		return -1;
	if (bench_mask)
		ip->saddr = bpf_htonl(0x0a000000 | (bench_round++ & bench_mask));
	return 0;
}

static __always_inline int undo(struct xdp_md *ctx)
{
	if (bpf_xdp_adjust_head(ctx, sizeof(struct iphdr)))
		return -1;
	if (start_of(ctx) + sizeof(struct ethhdr) > end_of(ctx))
		return -1;
	restore_l2(start_of(ctx));
	return 0;
}

SEC("xdp")
int bench(struct xdp_md *ctx)
{
	if (vary_flow(ctx))
		return XDP_ABORTED;
	int action = run(ctx);
	if (action == XDP_TX && undo(ctx))
		return XDP_ABORTED;
	return action;
}

SEC("xdp")
int pair(struct xdp_md *ctx)
{
	if (vary_flow(ctx) || bpf_xdp_adjust_head(ctx, -(int)sizeof(struct iphdr)) || undo(ctx))
		return XDP_ABORTED;
	return XDP_TX;
}

SEC("xdp")
int empty(struct xdp_md *ctx)
{
	return vary_flow(ctx) ? XDP_ABORTED : XDP_PASS;
}
