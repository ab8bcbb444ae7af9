// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The program as the bench runs it. The kernel's test run repeats a program on one buffer and does not restore it, so
// that the second round would see the encapsulated packet: `bench` takes the outer header off again, or puts back the
// bytes that it kept. `pair`, `copied` and `empty` do the same work around nothing, for what has to be subtracted.

#include "shard_l4.bpf.c"

// Set at load: how many flows the rounds go through (a power of two, less one); 0 = one flow.
const volatile __u32 bench_mask;

// How many bytes from the frame's start are put back after each round; 0: an outer header is taken off, no more.
const volatile __u32 bench_copied;

// Where `connecting` has the bench's one flow, which shall be new each time.
const volatile __u32 bench_slot;

static __u32 bench_round;
static __u8 bench_kept[128];

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

static __always_inline int keep_bytes(struct xdp_md *ctx)
{
	return bench_copied <= sizeof(bench_kept) ? bpf_xdp_load_bytes(ctx, 0, bench_kept, bench_copied) : -1;
}

static __always_inline int length_of(struct xdp_md *ctx)
{
	int bytes = ctx->data_end - ctx->data;
	barrier_var(bytes); // two pointers, whose difference the verifier knows only as a whole
	return bytes;
}

// Nothing that is measured so moves the frame's end.
static __always_inline int put_back(struct xdp_md *ctx, int bytes)
{
	__u32 zero = 0;
	struct connecting *c = bpf_map_lookup_elem(&connecting, &zero);
	if (c)
		c->slots[bench_slot % CONNECTING_SLOTS] = 0;
	if (ctx->data_meta != ctx->data && bpf_xdp_adjust_meta(ctx, sizeof(struct grant)))
		return -1;
	return bpf_xdp_adjust_head(ctx, length_of(ctx) - bytes) || bench_copied > sizeof(bench_kept) ||
	       bpf_xdp_store_bytes(ctx, 0, bench_kept, bench_copied);
}

SEC("xdp")
int bench(struct xdp_md *ctx)
{
	if (vary_flow(ctx) || (bench_copied && keep_bytes(ctx)))
		return XDP_ABORTED;
	int bytes = length_of(ctx);
	int action = run(ctx);
	if (bench_copied)
		return put_back(ctx, bytes) ? XDP_ABORTED : action;
	if (action == XDP_TX && undo(ctx))
		return XDP_ABORTED;
	return action;
}

SEC("xdp")
int copied(struct xdp_md *ctx)
{
	int bytes = length_of(ctx);
	return vary_flow(ctx) || keep_bytes(ctx) || put_back(ctx, bytes) ? XDP_ABORTED : XDP_PASS;
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
