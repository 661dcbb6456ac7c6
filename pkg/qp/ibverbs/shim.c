//go:build ibverbs && cgo && linux

#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

// Some functions of libibverbs fail without setting errno.
static int last_error(void)
{
	return errno ? errno : EIO;
}

int mc_list(char *buf, size_t len)
{
	int n, i;
	struct ibv_device **list;

	errno = 0;
	list = ibv_get_device_list(&n);
	if (!list)
		return last_error();
	for (i = 0; i < n; i++) {
		const char *name = ibv_get_device_name(list[i]);
		size_t l = strlen(name);

		if (l + 2 > len)
			break;
		memcpy(buf, name, l);
		buf[l] = '\n';
		buf += l + 1;
		len -= l + 1;
	}
	*buf = 0;
	ibv_free_device_list(list);
	return 0;
}

int mc_open(const char *name, struct ibv_context **out)
{
	struct ibv_device **list, **d;
	int err = ENODEV;

	errno = 0;
	list = ibv_get_device_list(NULL);
	if (!list)
		return last_error();
	for (d = list; *d; d++) {
		if (strcmp(ibv_get_device_name(*d), name))
			continue;
		errno = 0;
		*out = ibv_open_device(*d);
		err = *out ? 0 : last_error();
		break;
	}
	ibv_free_device_list(list);
	return err ? err : mc_nonblock((*out)->async_fd);
}

int mc_query(struct ibv_context *ctx, uint8_t port, struct mc_info *out)
{
	struct ibv_device_attr dev;
	struct ibv_port_attr p;
	int err = ibv_query_device(ctx, &dev);

	if (err)
		return err;
	err = ibv_query_port(ctx, port, &p);
	if (err)
		return err;
	out->max_sge = dev.max_sge;
	out->max_qp_wr = dev.max_qp_wr;
	out->max_cqe = dev.max_cqe;
	out->active_mtu = p.active_mtu;
	out->gid_tbl_len = p.gid_tbl_len;
	out->max_msg_sz = p.max_msg_sz;
	out->ethernet = p.link_layer == IBV_LINK_LAYER_ETHERNET;
	out->active = p.state == IBV_PORT_ACTIVE;
	return 0;
}

int mc_query_gid(struct ibv_context *ctx, uint8_t port, uint32_t index, uint8_t gid[16], uint32_t *type)
{
	struct ibv_gid_entry e;
	int err;

	memset(&e, 0, sizeof e);
	err = ibv_query_gid_ex(ctx, port, index, &e, 0);
	if (err)
		return err;
	memcpy(gid, e.gid.raw, 16);
	*type = e.gid_type;
	return 0;
}

int mc_alloc_pd(struct ibv_context *ctx, struct ibv_pd **out)
{
	errno = 0;
	*out = ibv_alloc_pd(ctx);
	return *out ? 0 : last_error();
}

int mc_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t len, uint64_t iova, int access, struct ibv_mr **out)
{
	errno = 0;
	*out = ibv_reg_mr_iova(pd, (void *)addr, len, iova, access);
	return *out ? 0 : last_error();
}

int mc_create_cq(struct ibv_context *ctx, int depth, struct ibv_comp_channel **ch, struct ibv_cq **out)
{
	int err;

	errno = 0;
	*ch = ibv_create_comp_channel(ctx);
	if (!*ch)
		return last_error();
	err = mc_nonblock((*ch)->fd);
	if (!err) {
		errno = 0;
		*out = ibv_create_cq(ctx, depth, NULL, *ch, 0);
		if (*out)
			return 0;
		err = last_error();
	}
	ibv_destroy_comp_channel(*ch);
	return err;
}

int mc_req_notify(struct ibv_cq *cq)
{
	return ibv_req_notify_cq(cq, 0);
}

int mc_get_cq_event(struct ibv_comp_channel *ch)
{
	struct ibv_cq *cq;
	void *ctx;

	errno = 0;
	if (ibv_get_cq_event(ch, &cq, &ctx))
		return last_error();
	ibv_ack_cq_events(cq, 1);
	return 0;
}

int mc_poll_cq(struct ibv_cq *cq, int n, struct mc_wc *out)
{
	enum { BATCH = 32 };
	struct ibv_wc wc[BATCH];
	int i, got;

	errno = 0;
	got = ibv_poll_cq(cq, n < BATCH ? n : BATCH, wc);
	if (got < 0)
		return -last_error();
	for (i = 0; i < got; i++) {
		out[i].id = wc[i].wr_id;
		out[i].status = wc[i].status;
		out[i].opcode = wc[i].opcode;
		out[i].vendor_err = wc[i].vendor_err;
		out[i].byte_len = wc[i].byte_len;
		out[i].imm = ntohl(wc[i].imm_data);
		out[i].qpn = wc[i].qp_num;
		out[i].flags = wc[i].wc_flags;
	}
	return got;
}

int mc_create_qp(struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq,
		 uint32_t send_wr, uint32_t recv_wr, uint32_t sge, int sig_all, struct ibv_qp **out)
{
	struct ibv_qp_init_attr init = {
		.send_cq = scq,
		.recv_cq = rcq,
		.cap = {
			.max_send_wr = send_wr,
			.max_recv_wr = recv_wr,
			.max_send_sge = sge,
			.max_recv_sge = sge,
		},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = sig_all,
	};

	errno = 0;
	*out = ibv_create_qp(pd, &init);
	return *out ? 0 : last_error();
}

int mc_modify_qp(struct ibv_qp *qp, const struct mc_qp_attr *attr, int mask)
{
	struct ibv_qp_attr a = {
		.qp_state = attr->state,
		.path_mtu = attr->path_mtu,
		.qp_access_flags = attr->access,
		.dest_qp_num = attr->dest_qpn,
		.sq_psn = attr->sq_psn,
		.rq_psn = attr->rq_psn,
		.timeout = attr->timeout,
		.retry_cnt = attr->retry_cnt,
		.rnr_retry = attr->rnr_retry,
		.min_rnr_timer = attr->min_rnr_timer,
		.pkey_index = 0,
		.port_num = attr->port,
		.max_rd_atomic = attr->max_rd_atomic,
		.max_dest_rd_atomic = attr->max_dest_rd_atomic,
		.ah_attr = {
			.is_global = 1,
			.port_num = attr->port,
			.grh = {
				.sgid_index = attr->sgid_index,
				.hop_limit = 64,
				.traffic_class = attr->traffic_class,
			},
		},
	};

	memcpy(a.ah_attr.grh.dgid.raw, attr->dgid, 16);
	return ibv_modify_qp(qp, &a, mask);
}

int mc_query_qp(struct ibv_qp *qp, struct mc_qp_attr *out)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	int err;

	memset(&a, 0, sizeof a);
	err = ibv_query_qp(qp, &a,
			   IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU |
			   IBV_QP_SQ_PSN | IBV_QP_RQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			   IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &init);
	if (err)
		return err;
	out->state = a.qp_state;
	out->path_mtu = a.path_mtu;
	out->access = a.qp_access_flags;
	out->dest_qpn = a.dest_qp_num;
	out->sq_psn = a.sq_psn;
	out->rq_psn = a.rq_psn;
	out->timeout = a.timeout;
	out->retry_cnt = a.retry_cnt;
	out->rnr_retry = a.rnr_retry;
	out->min_rnr_timer = a.min_rnr_timer;
	out->max_rd_atomic = a.max_rd_atomic;
	out->max_dest_rd_atomic = a.max_dest_rd_atomic;
	out->traffic_class = a.ah_attr.grh.traffic_class;
	memcpy(out->dgid, a.ah_attr.grh.dgid.raw, 16);
	return 0;
}

int mc_post_send(struct ibv_qp *qp, const struct mc_wr *wr, struct ibv_sge *sges, int n)
{
	struct ibv_send_wr *bad, w = {
		.wr_id = wr->id,
		.sg_list = sges,
		.num_sge = n,
		.opcode = wr->opcode,
		.send_flags = wr->flags,
		.imm_data = htonl(wr->imm),
		.wr = { .rdma = { .remote_addr = wr->remote_addr, .rkey = wr->rkey } },
	};

	return ibv_post_send(qp, &w, &bad);
}

int mc_post_recv(struct ibv_qp *qp, uint64_t id, struct ibv_sge *sges, int n)
{
	struct ibv_recv_wr *bad, w = { .wr_id = id, .sg_list = sges, .num_sge = n };

	return ibv_post_recv(qp, &w, &bad);
}

int mc_get_async_event(struct ibv_context *ctx, struct mc_event *out)
{
	struct ibv_async_event e;

	errno = 0;
	if (ibv_get_async_event(ctx, &e))
		return last_error();
	out->type = e.event_type;
	out->qpn = 0;
	out->cq = NULL;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->cq = e.element.cq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
		out->qpn = e.element.qp->qp_num;
		break;
	default:
		break;
	}
	ibv_ack_async_event(&e);
	return 0;
}

int mc_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}
