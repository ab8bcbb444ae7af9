// The maps and the constants of one load. What each key and value means is in abi.h.
#pragma once

#include "abi.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// Set by the loader before the program is verified, so that the verifier folds them into the code.
const volatile struct config config;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct vip4_bucket);
	__uint(max_entries, VIP_BUCKETS);
	__uint(map_flags, BPF_F_MMAPABLE);
} vips4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct vip6_bucket);
	__uint(max_entries, VIP_BUCKETS);
	__uint(map_flags, BPF_F_MMAPABLE);
} vips6 SEC(".maps");

// Mappable arrays begin on a page: each set is one cache line.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct flow_set);
	__uint(max_entries, 1 << 17);
	__uint(map_flags, BPF_F_MMAPABLE);
} flows SEC(".maps");

// By sizes, not types: clang leaves types out of the BTF that only an inner map names.
struct table_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct table_page));
	__uint(max_entries, TABLE_PAGES);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, __u32);
	__uint(max_entries, VIPS_MAX);
	__array(values, struct table_map);
} tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct owner);
	__uint(max_entries, OWNERS_MAX);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct prefix_key);
	__type(value, __u32);
	__uint(max_entries, TRUSTED_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} trusted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct rule_key);
	__type(value, struct rule);
	__uint(max_entries, RULES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct quic_config);
	__uint(max_entries, VIPS_MAX * QUIC_CONFIGS);
} quic_configs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct server_id_key);
	__type(value, __u32);
	__uint(max_entries, SERVER_IDS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} server_ids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct settings);
	__uint(max_entries, 1);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct vip_counts);
	__uint(max_entries, VIPS_MAX);
} vip_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct owner_counts);
	__uint(max_entries, OWNERS_MAX);
} owner_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct rescue_counts);
	__uint(max_entries, VIPS_MAX);
} rescue_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct budgets);
	__uint(max_entries, 1);
} budgets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct budget);
	__uint(max_entries, VIPS_MAX);
} syn_budgets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct budget);
	__uint(max_entries, 1);
} questions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct connecting);
	__uint(max_entries, 1);
} connecting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct early);
	__uint(max_entries, 1);
} early SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} trace SEC(".maps");
