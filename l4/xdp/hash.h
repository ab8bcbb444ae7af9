// The flow hash; l4/abi/src/hash.rs has the same in Rust and says what it promises.
#pragma once

#include "packet.h"

#define HASH_BIAS4 10
#define HASH_BIAS6 11

#define HASH_PAIR(keys, i, first, second) (((keys)[i] + (second)) * ((keys)[(i) + 1] + (first)))

static __always_inline __u64 hash_finish(__u64 a, __u64 b)
{
	__u64 hash = (a & 0xffffffff00000000ull) | b >> 32;
	hash ^= hash >> 29;
	hash *= 0xbf58476d1ce4e5b9ull;
	return hash ^ hash >> 32;
}

static __always_inline __u64 hash4(const struct packet *p, __u64 ports)
{
	__u64 source = p->source[0], destination = p->destination[0], protocol = p->protocol;
	__u64 a = config.hash_a[HASH_BIAS4] + HASH_PAIR(config.hash_a, 0, source, destination) +
		  HASH_PAIR(config.hash_a, 2, ports, protocol);
	__u64 b = config.hash_b[HASH_BIAS4] + HASH_PAIR(config.hash_b, 0, source, destination) +
		  HASH_PAIR(config.hash_b, 2, ports, protocol);
	return hash_finish(a, b);
}

static __always_inline __u64 hash6_lane(const volatile __u64 *keys, const struct packet *p, __u64 ports)
{
	const __u32 *s = p->source, *d = p->destination;
	return keys[HASH_BIAS6] + HASH_PAIR(keys, 0, (__u64)s[0], (__u64)s[1]) +
	       HASH_PAIR(keys, 2, (__u64)s[2], (__u64)s[3]) + HASH_PAIR(keys, 4, (__u64)d[0], (__u64)d[1]) +
	       HASH_PAIR(keys, 6, (__u64)d[2], (__u64)d[3]) + HASH_PAIR(keys, 8, ports, (__u64)p->protocol);
}

static __always_inline __u64 flow_hash(const struct packet *p, __u32 vip_flags)
{
	__u64 ports = vip_flags & VIP_HASH_ADDRESSES ? 0 : p->ports;
	if (p->v6)
		return hash_finish(hash6_lane(config.hash_a, p, ports), hash6_lane(config.hash_b, p, ports));
	return hash4(p, ports);
}

static __always_inline __u32 row_of(__u64 hash)
{
	return (hash & 0xffffffff) * TABLE_ROWS >> 32;
}
