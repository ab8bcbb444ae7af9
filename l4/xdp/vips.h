// Whose packet it is: the VIP of an address, port and protocol. abi.h says how the buckets are filled.
//
// A bucket is searched without a branch: each slot's VIP is masked by whether its key is equal. Branches would cost
// time, and the verifier would follow all of them.
#pragma once

#include "packet.h"

// A VIP in one word, as it stands in its slot: the id in the lower half, the flags in the upper one. 0 = none.
typedef __u64 vip_word;

// All ones if both are equal.
static __always_inline __u64 equal_mask(__u64 a, __u64 b)
{
	__u64 difference = a ^ b;
	return ((difference | -difference) >> 63) - 1;
}

static __always_inline vip_word in_bucket4(const struct vip4_bucket *bucket, __u64 key)
{
	vip_word found = 0;
	for (int i = 0; i < VIP_SLOTS; i++)
		found |= *(vip_word *)&bucket->slots[i].vip & equal_mask(*(__u64 *)&bucket->slots[i].key, key);
	return found;
}

static __always_inline vip_word in_bucket6(const struct vip6_bucket *bucket, __u64 first, __u64 second, __u64 third)
{
	vip_word found = 0;
	for (int i = 0; i < VIP_SLOTS; i++) {
		const __u64 *key = (const __u64 *)&bucket->slots[i].key;
		found |= *(vip_word *)&bucket->slots[i].vip & equal_mask(key[0], first) & equal_mask(key[1], second) &
			 equal_mask(key[2], third);
	}
	return found;
}

// The buckets behind a full one. Functions that are neither static nor inlined are verified once, by themselves.
__noinline vip_word vip4_behind(__u32 index, __u64 key)
{
	for (int probe = 1; probe < VIP_PROBES; probe++) {
		__u32 next = (index + probe) % VIP_BUCKETS;
		struct vip4_bucket *bucket = bpf_map_lookup_elem(&vips4, &next);
		vip_word found = bucket ? in_bucket4(bucket, key) : 0;
		if (found || !bucket || !bucket->slots[VIP_SLOTS - 1].vip.id)
			return found;
	}
	return 0;
}

__noinline vip_word vip6_behind(__u32 index, __u64 first, __u64 second, __u64 third)
{
	for (int probe = 1; probe < VIP_PROBES; probe++) {
		__u32 next = (index + probe) % VIP_BUCKETS;
		struct vip6_bucket *bucket = bpf_map_lookup_elem(&vips6, &next);
		vip_word found = bucket ? in_bucket6(bucket, first, second, third) : 0;
		if (found || !bucket || !bucket->slots[VIP_SLOTS - 1].vip.id)
			return found;
	}
	return 0;
}

static __always_inline vip_word vip4_at(__be32 address, __be16 port, __u8 protocol)
{
	__u64 key = address | (__u64)port << 32 | (__u64)protocol << 48;
	__u32 index = key * VIP_MIX >> VIP_BUCKET_SHIFT;
	struct vip4_bucket *bucket = bpf_map_lookup_elem(&vips4, &index);
	if (rare(!bucket))
		return 0;
	vip_word found = in_bucket4(bucket, key);
	if (!found && rare(bucket->slots[VIP_SLOTS - 1].vip.id))
		found = vip4_behind(index, key);
	return found;
}

static __always_inline vip_word vip6_at(const __u32 *address, __be16 port, __u8 protocol)
{
	__u64 first = address[0] | (__u64)address[1] << 32, second = address[2] | (__u64)address[3] << 32;
	__u64 third = port | (__u32)protocol << 16;
	__u32 index = (first * VIP_MIX ^ second * VIP_MIX_SECOND ^ third * VIP_MIX_THIRD) >> VIP_BUCKET_SHIFT;
	struct vip6_bucket *bucket = bpf_map_lookup_elem(&vips6, &index);
	if (rare(!bucket))
		return 0;
	vip_word found = in_bucket6(bucket, first, second, third);
	if (!found && rare(bucket->slots[VIP_SLOTS - 1].vip.id))
		found = vip6_behind(index, first, second, third);
	return found;
}

static __always_inline vip_word vip_at(const struct packet *p, __be16 port, __u8 protocol)
{
	return p->v6 ? vip6_at(p->destination, port, protocol) : vip4_at(p->destination[0], port, protocol);
}

// The VIP of a TCP or UDP flow: its port's, or the one for all ports.
static __always_inline vip_word vip_of_flow(const struct packet *p)
{
	vip_word vip = vip_at(p, p->ports >> 16, p->protocol);
	if (vip)
		return vip;
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	return s && rare(s->any_port) ? vip_at(p, 0, p->protocol) : 0;
}

// The VIP of a packet without the ports of a flow, and in `decision` what such packets come to. Fragments go to the
// VIP of all ports that hashes addresses alone; others only tell that the address is a VIP's (protocol 0).
__noinline vip_word vip_of_portless(const struct packet *p, __u32 *decision)
{
	if (!p || !decision)
		return 0;
	if (p->kind == KIND_ECHO) {
		*decision = DECISION_ECHO_ANSWERED;
		return vip_at(p, 0, p->protocol);
	}
	*decision = DECISION_DROP_OPTIONS;
	if (p->kind == KIND_FRAGMENT) {
		*decision = DECISION_FORWARD_STATELESS;
		vip_word vip = vip_at(p, 0, p->protocol);
		if (vip >> 32 & VIP_HASH_ADDRESSES)
			return vip;
		*decision = DECISION_DROP_FRAGMENT;
	}
	return vip_at(p, 0, 0);
}
