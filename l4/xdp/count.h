// Counters, budgets and the sampled trace. One call, `done`, closes each packet.
#pragma once

#include "packet.h"

// The kernel's clock in ticks; the verifier turns the call into one load.
static __always_inline __u32 now_ticks(void)
{
	return bpf_jiffies64();
}

static __always_inline void count(__u32 vip, __u32 decision)
{
	struct vip_counts *counts = bpf_map_lookup_elem(&vip_counts, &vip);
	if (counts)
		counts->packets[decision & 31]++;
}

static __always_inline void count_forwarded(__u32 vip, __u32 owner, __u32 bytes, __u32 decision)
{
	struct vip_counts *counts = bpf_map_lookup_elem(&vip_counts, &vip);
	if (counts) {
		counts->packets[decision & 31]++;
		counts->forwarded_bytes += bytes;
	}
	struct owner_counts *owned = bpf_map_lookup_elem(&owner_counts, &owner);
	if (owned) {
		owned->packets++;
		owned->bytes += bytes;
	}
}

// Second chances are counted by the table's version, so that each change of a fleet shows what it cost.
static __always_inline void count_rescue(__u32 vip, __u32 version, int rescued)
{
	struct rescue_counts *counts = bpf_map_lookup_elem(&rescue_counts, &vip);
	if (!counts)
		return;
	if (counts->version != version) {
		counts->version = version;
		counts->rescued = 0;
		counts->reset = 0;
	}
	if (rescued)
		counts->rescued++;
	else
		counts->reset++;
}

// Takes one from a budget of this CPU that fills up once in each window.
static __always_inline int spend(__u32 *window, __u32 *used, __u32 limit)
{
	__u32 now = now_ticks();
	if (now - *window >= config.window_ticks) {
		*window = now;
		*used = 0;
	}
	if (*used >= limit)
		return 0;
	(*used)++;
	return 1;
}

static __always_inline int may_insert(void)
{
	__u32 zero = 0;
	struct budgets *b = bpf_map_lookup_elem(&budgets, &zero);
	return b && spend(&b->insert_window, &b->inserts, config.inserts_per_window);
}

static __always_inline int may_ask(void)
{
	__u32 zero = 0;
	struct budget *b = bpf_map_lookup_elem(&questions, &zero);
	return b && spend(&b->window, &b->used, config.questions_per_window);
}

static __always_inline int may_send_icmp(void)
{
	__u32 zero = 0;
	struct budgets *b = bpf_map_lookup_elem(&budgets, &zero);
	return b && spend(&b->icmp_window, &b->icmp, config.icmp_per_window);
}

// An address in 16 bytes, IPv4 as v4-mapped.
static __always_inline void map_address(const struct packet *p, const __u32 *address, __u8 *to)
{
	__u32 *words = (__u32 *)to;
	words[0] = p->v6 ? address[0] : 0;
	words[1] = p->v6 ? address[1] : 0;
	words[2] = p->v6 ? address[2] : bpf_htonl(0xffff);
	words[3] = p->v6 ? address[3] : address[0];
}

// Never inlined: off by default, and its event would crowd the stack of the path that is on.
__noinline int trace_packet(const struct packet *p, __u64 flow, __u32 vip, __u32 owner_decision)
{
	if (!p)
		return 0;
	struct trace_event *event = bpf_ringbuf_reserve(&trace, sizeof(*event), 0);
	if (!event)
		return 0;
	event->time_ns = bpf_ktime_get_ns();
	event->flow = flow;
	event->vip = vip;
	event->decision = owner_decision & 0xffff;
	event->owner = owner_decision >> 16;
	map_address(p, p->source, event->source);
	map_address(p, p->destination, event->destination);
	event->source_port = p->ports & 0xffff;
	event->destination_port = p->ports >> 16;
	event->protocol = p->protocol;
	event->zero = 0;
	event->packet_bytes = p->ip_bytes;
	bpf_ringbuf_submit(event, 0);
	return 0;
}
