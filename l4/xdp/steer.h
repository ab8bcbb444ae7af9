// Which owner: the flow table first, then the VIP's Maglev row.
#pragma once

#include "hash.h"
#include "decap.h"

// A flow's time stamp is written this seldom, so that a busy flow does not dirty its cache line with each packet.
#define SEEN_STEP_TICKS 64

struct choice {
	const struct owner *owner; // 0: none
	__u32 id;
	__u32 decision;
};

static __always_inline const struct owner *used_owner(__u32 id)
{
	const struct owner *owner = bpf_map_lookup_elem(&owners, &id);
	return owner && owner->flags & OWNER_USED ? owner : 0;
}

// The page of a VIP's table that a flow's row is on.
static __always_inline const struct table_page *page_of(__u32 vip, __u32 row)
{
	__u32 page = row / PAGE_ROWS;
	void *table = bpf_map_lookup_elem(&tables, &vip);
	return table ? bpf_map_lookup_elem(table, &page) : 0;
}

// What the flow table knows, unless it slept too long or its owner is gone.
static __always_inline int by_flow(struct choice *choice, __u64 hash)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, &hash);
	if (!flow)
		return 0;
	__u32 asleep = now_ticks() - flow->seen;
	if (rare(asleep >= SEEN_STEP_TICKS)) {
		if (asleep >= config.flow_idle_ticks)
			return 0;
		flow->seen += asleep;
	}
	choice->id = flow->owner;
	choice->owner = used_owner(choice->id);
	choice->decision = DECISION_FORWARD_FLOW;
	return choice->owner != 0;
}

// The row's present owner. The flow is remembered if it begins here or if nobody else can have it: remembering the
// new owner of a flow that began before a change would kill it.
static __always_inline void by_row(struct choice *choice, const struct packet *p, const struct vip *vip, __u64 hash)
{
	__u32 index = row_of(hash);
	const struct table_page *page = page_of(vip->id, index);
	choice->owner = 0;
	choice->decision = DECISION_FORWARD_STATELESS;
	if (rare(!page))
		return;
	struct row row = page->rows[index % PAGE_ROWS];
	choice->id = row.current;
	choice->owner = used_owner(row.current);
	if (rare(!choice->owner) || !(p->kind == KIND_SYN || (p->kind == KIND_FLOW && row.current == row.previous)))
		return;
	if (rare(!may_insert())) {
		count(vip->id, DECISION_INSERT_CAPPED);
		return;
	}
	struct flow flow = { .seen = now_ticks(), .owner = row.current, .vip = vip->id };
	if (!bpf_map_update_elem(&flows, &hash, &flow, BPF_ANY))
		choice->decision = DECISION_FORWARD_NEW;
}
