// QUIC connection ids that carry a server id (draft-ietf-quic-load-balancers).
#pragma once

#include "steer.h"

static __always_inline int by_connection_id(struct xdp_md *ctx, struct choice *choice, const struct packet *p,
					    const struct vip *vip)
{
	return 0;
}
