// Which owner: the flow table first, then the VIP's Maglev row.
#pragma once

#include "hash.h"
#include "decap.h"

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

static __always_inline __u32 now_units(void)
{
	return bpf_jiffies64() >> FLOW_SEEN_TICKS_SHIFT & FLOW_SEEN_MASK;
}

static __always_inline struct flow_set *set_of(__u64 hash)
{
	__u32 index = hash & config.flow_set_mask;
	return bpf_map_lookup_elem(&flows, &index);
}

static __always_inline __u32 age_of(__u64 flow, __u32 now)
{
	return (now - (__u32)flow) & FLOW_SEEN_MASK;
}

// Writes into a flow that it is in use. Seldom: on its second packet, then about once a second, so that a busy flow does
// not dirty its cache line.
__noinline int touch(__u64 hash)
{
	struct flow_set *set = set_of(hash);
	for (int i = 0; set && i < FLOW_WAYS; i++)
		if (set->ways[i] >> FLOW_TAG_SHIFT == hash >> FLOW_TAG_SHIFT)
			set->ways[i] = (set->ways[i] & ~(__u64)FLOW_SEEN_MASK) | FLOW_CONFIRMED | now_units();
	return 0;
}

// A flow's word in its set, or 0. Searched without a branch, as a bucket in vips.h.
static __always_inline __u64 flow_in(const struct flow_set *set, __u64 hash)
{
	__u64 tag = hash >> FLOW_TAG_SHIFT, flow = 0;
	for (int i = 0; i < FLOW_WAYS; i++) {
		__s64 difference = set->ways[i] >> FLOW_TAG_SHIFT ^ tag;
		flow |= set->ways[i] & (__u64)((difference - 1) >> 63);
	}
	return flow;
}

// What the flow table knows, unless it slept too long or its owner is gone.
static __always_inline int by_flow(struct choice *choice, const struct packet *p, __u64 hash)
{
	struct flow_set *set = set_of(hash);
	if (rare(!set))
		return 0;
	__u64 flow = flow_in(set, hash);
	__u32 age = age_of(flow, now_units());
	if (!(flow >> FLOW_OWNER_SHIFT & FLOW_OWNER_MASK) || rare(age >= config.flow_idle_units))
		return 0;
	if (rare(age || !(flow & FLOW_CONFIRMED)) && p->kind == KIND_FLOW)
		touch(hash);
	choice->id = flow >> FLOW_OWNER_SHIFT & FLOW_OWNER_MASK;
	choice->owner = used_owner(choice->id);
	choice->decision = DECISION_FORWARD_FLOW;
	return choice->owner != 0;
}

// All ones if a number is negative; the barrier keeps the compiler from making a branch of it.
static __always_inline __s64 negative(__s64 number)
{
	barrier_var(number);
	return number >> 63;
}

// Takes the place of the same flow, else of an idle one, else of the one that is unconfirmed and oldest, else of the
// oldest. A flood of SYNs therefore replaces its own kind and not the flows that carry data. Without branches, because
// the verifier would follow all of them through all ways: two thirds of its work on the whole program.
__noinline int remember(__u64 hash, __u32 owner)
{
	struct flow_set *set = set_of(hash);
	if (!set)
		return -1;
	__s64 now = now_units(), worst = 0;
	for (int i = 0; i < FLOW_WAYS; i++) {
		__u64 flow = set->ways[i];
		__s64 age = age_of(flow, now);
		__s64 idle = negative((__s64)config.flow_idle_units - 1 - age);
		__s64 empty = negative((__s64)(flow >> FLOW_OWNER_SHIFT & FLOW_OWNER_MASK) - 1);
		__s64 same = negative((__s64)(flow >> FLOW_TAG_SHIFT ^ hash >> FLOW_TAG_SHIFT) - 1);
		__s64 unconfirmed = negative((__s64)(flow & FLOW_CONFIRMED) - 1);
		__s64 score = age | (unconfirmed & 1 << 16) | ((idle | empty) & 1 << 17) | (same & 1 << 18);
		// The way's number travels in the score's low bits: the greatest word names the victim.
		score = score << FLOW_WAY_BITS | i;
		worst -= (worst - score) & negative(worst - score);
	}
	__u32 victim = (__u32)worst % FLOW_WAYS;
	set->ways[victim] = (hash >> FLOW_TAG_SHIFT << FLOW_TAG_SHIFT) | owner << FLOW_OWNER_SHIFT | (__u32)now;
	return 0;
}

// Whether the flow that a SYN begins has an owner to go to, so that answering it here makes sense. The ACK of the answer
// shall not go by what is remembered of an earlier connection with the same addresses and ports, but by the row, as the
// SYN itself would have.
__noinline int row_is_owned(__u32 vip, __u64 hash)
{
	__u32 index = row_of(hash);
	const struct table_page *page = page_of(vip, index);
	if (!page)
		return 0;
	__u32 owner = page->rows[index % PAGE_ROWS].current;
	if (!used_owner(owner))
		return 0;
	struct flow_set *set = set_of(hash);
	for (int i = 0; set && i < FLOW_WAYS; i++) {
		__u64 flow = set->ways[i];
		if (flow >> FLOW_TAG_SHIFT == hash >> FLOW_TAG_SHIFT && (flow >> FLOW_OWNER_SHIFT & FLOW_OWNER_MASK) != owner)
			set->ways[i] = (hash >> FLOW_TAG_SHIFT << FLOW_TAG_SHIFT) | owner << FLOW_OWNER_SHIFT | now_units();
	}
	return 1;
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
	if (!remember(hash, row.current))
		choice->decision = DECISION_FORWARD_NEW;
}
