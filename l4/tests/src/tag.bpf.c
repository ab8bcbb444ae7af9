// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Puts a priority tag (IEEE 802.1Q, VLAN 0) on each frame that leaves an interface. A stack takes it off and needs no
// VLAN device for it.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PRIORITY_3 0x6000

SEC("classifier")
int tag(struct __sk_buff *skb)
{
	return bpf_skb_vlan_push(skb, bpf_htons(0x8100), PRIORITY_3) ? TC_ACT_SHOT : TC_ACT_OK;
}

char _license[] SEC("license") = "Dual BSD/GPL";
