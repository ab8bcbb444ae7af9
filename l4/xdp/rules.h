// Drop rules: by source prefix for one VIP, with an end and, optionally, a rate that still passes.
#pragma once

#include "count.h"

// Whether a rule drops the packet. A rate is counted over all CPUs in windows of one second; a packet or two too many
// may pass when two CPUs open a window together.
__noinline int rule_drops(const struct packet *p, __u32 vip)
{
	if (!p)
		return 0;
	struct rule_key key = { .prefix_bits = 32 + 128, .vip = vip };
	map_address(p, p->source, key.address);
	struct rule *rule = bpf_map_lookup_elem(&rules, &key);
	if (!rule)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	if (rule->expires_ns && now >= rule->expires_ns) {
		count(vip, DECISION_RULE_EXPIRED);
		return 0;
	}
	if (rule->packets_per_s) {
		__u32 second = now / 1000000000;
		if (rule->window_s != second) {
			rule->window_s = second;
			rule->used = 0;
		}
		if (__sync_fetch_and_add(&rule->used, 1) < rule->packets_per_s)
			return 0;
	}
	__sync_fetch_and_add(&rule->dropped, 1);
	return 1;
}
