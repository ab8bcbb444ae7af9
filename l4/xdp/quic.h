// QUIC connection ids that carry a server id (draft-ietf-quic-load-balancers-21): plaintext, and encrypted in a single
// pass. An id that names nobody is hashed like any datagram.
#pragma once

#include "steer.h"
#include "aes.h"

#define QUIC_LONG_HEADER 0x80
#define QUIC_UNROUTABLE 7 // config rotation codepoint

// The owner that the destination connection id at `offset`, where UDP's payload begins, names; 0 = none. The id's first
// octet has the codepoint in its upper three bits; the server id, or the encrypted block, follows.
__noinline __u32 owner_of_connection(struct xdp_md *ctx, __u32 offset, __u32 vip)
{
	__u8 head[6], first;
	if (bpf_xdp_load_bytes(ctx, offset, head, sizeof(head)))
		return 0;
	// RFC 8999 section 5: a long header has version and length before the id, a short one nothing.
	int is_long = head[0] & QUIC_LONG_HEADER;
	__u32 at = offset + (is_long ? sizeof(head) : 1);
	if (bpf_xdp_load_bytes(ctx, at, &first, sizeof(first)) || first >> 5 == QUIC_UNROUTABLE)
		return 0;
	__u32 index = vip * QUIC_CONFIGS + (first >> 5);
	const struct quic_config *quic = bpf_map_lookup_elem(&quic_configs, &index);
	if (!quic || quic->form == QUIC_UNUSED)
		return 0;
	if (is_long && head[5] < 1 + quic->server_id_bytes + quic->nonce_bytes)
		return 0;
	struct server_id_key key __attribute__((aligned(8))) = {
		.vip = vip, .config = first >> 5, .bytes = quic->server_id_bytes
	};
	// A plain id may end before 16 bytes; the nonce that follows it is cut off below with the rest.
	__u32 bytes = quic->form == QUIC_ENCRYPTED ? sizeof(key.id) : quic->server_id_bytes;
	if (bytes - 1 >= sizeof(key.id) || bpf_xdp_load_bytes(ctx, at + 1, key.id, bytes))
		return 0;
	if (quic->form == QUIC_ENCRYPTED)
		aes_decrypt((__be32 *)key.id, quic->round_keys);
	// Keeps the server id and nothing behind it; by words, because the verifier would walk a loop over bytes 2^16 times.
	__u64 *words = (__u64 *)key.id;
	__u32 bits = quic->server_id_bytes * 8 & 127;
	words[0] &= bits < 64 ? (1ull << bits) - 1 : ~0ull;
	words[1] &= bits < 64 ? 0 : (1ull << (bits - 64)) - 1;
	__u32 *owner = bpf_map_lookup_elem(&server_ids, &key);
	return owner ? *owner : 0;
}

static __always_inline int by_connection_id(struct xdp_md *ctx, struct choice *choice, const struct packet *p,
					    const struct vip *vip)
{
	if (p->kind != KIND_FLOW || p->protocol != IPPROTO_UDP)
		return 0;
	__u32 ip_bytes = p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	choice->id = owner_of_connection(ctx, p->l2_bytes + ip_bytes + sizeof(struct udphdr), vip->id);
	choice->owner = used_owner(choice->id);
	choice->decision = DECISION_FORWARD_QUIC;
	return choice->owner != 0;
}
