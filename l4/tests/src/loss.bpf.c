// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Loses the head of each TCP flow that comes in by an interface: the first packets that are no SYN, as many as the loader says.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 head_packets;

// By the client's port, IPv6 behind IPv4: a test has one client.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 2 << 16);
} lost SEC(".maps");

SEC("classifier")
int lose(struct __sk_buff *skb)
{
	int v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	__u32 at = sizeof(struct ethhdr);
	__u8 protocol = 0;
	struct tcphdr tcp;
	if (bpf_skb_load_bytes(skb, at + (v6 ? offsetof(struct ipv6hdr, nexthdr) : offsetof(struct iphdr, protocol)), &protocol,
			       sizeof(protocol)) ||
	    protocol != IPPROTO_TCP ||
	    bpf_skb_load_bytes(skb, at + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)), &tcp, sizeof(tcp)) || tcp.syn)
		return TC_ACT_UNSPEC;
	__u32 flow = v6 << 16 | bpf_ntohs(tcp.source);
	__u32 *count = bpf_map_lookup_elem(&lost, &flow);
	if (!count || *count >= head_packets)
		return TC_ACT_UNSPEC;
	(*count)++;
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
