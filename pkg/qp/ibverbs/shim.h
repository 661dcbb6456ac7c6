// One function per verb that the Go side uses, flat structs instead of unions.
// Functions return 0 or an errno unless stated otherwise.

#ifndef MCRDMA_SHIM_H
#define MCRDMA_SHIM_H

#include <infiniband/verbs.h>
#include <stdint.h>

struct mc_info {
	uint32_t max_sge, max_qp_wr, max_cqe;
	uint32_t active_mtu; // enum ibv_mtu
	uint32_t gid_tbl_len;
	uint32_t max_msg_sz;
	int ethernet, active;
};

struct mc_qp_attr {
	uint32_t state, path_mtu, access, dest_qpn, sq_psn, rq_psn;
	uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer;
	uint8_t traffic_class, port, sgid_index, max_rd_atomic, max_dest_rd_atomic;
	uint8_t dgid[16];
};

struct mc_wr {
	uint64_t id, remote_addr;
	uint32_t opcode, flags, imm, rkey; // imm in host byte order
};

struct mc_wc {
	uint64_t id;
	uint32_t status, opcode, vendor_err, byte_len, imm, qpn, flags;
};

struct mc_event {
	uint32_t type;
	uint32_t qpn;     // 0 if no queue pair is concerned
	struct ibv_cq *cq; // for CQ errors
};

// mc_list writes the names of all devices, each ended by a newline, as far as
// they fit with a final NUL.
int mc_list(char *buf, size_t len);
int mc_open(const char *name, struct ibv_context **out);
int mc_query(struct ibv_context *ctx, uint8_t port, struct mc_info *out);
// mc_query_gid fills gid; it returns ENODATA for empty entries.
int mc_query_gid(struct ibv_context *ctx, uint8_t port, uint32_t index, uint8_t gid[16], uint32_t *type);
int mc_alloc_pd(struct ibv_context *ctx, struct ibv_pd **out);
// mc_reg_mr registers memory that peers address from iova on.
int mc_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t len, uint64_t iova, int access, struct ibv_mr **out);
// mc_create_cq makes a completion channel that does not block and a queue on it.
int mc_create_cq(struct ibv_context *ctx, int depth, struct ibv_comp_channel **ch, struct ibv_cq **out);
int mc_req_notify(struct ibv_cq *cq);
// mc_get_cq_event takes and acknowledges one event, or returns EAGAIN.
int mc_get_cq_event(struct ibv_comp_channel *ch);
// mc_poll_cq returns how many completions it wrote, or a negative errno.
int mc_poll_cq(struct ibv_cq *cq, int n, struct mc_wc *out);
int mc_create_qp(struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq,
		 uint32_t send_wr, uint32_t recv_wr, uint32_t sge, int sig_all, struct ibv_qp **out);
int mc_modify_qp(struct ibv_qp *qp, const struct mc_qp_attr *attr, int mask);
int mc_query_qp(struct ibv_qp *qp, struct mc_qp_attr *out);
int mc_post_send(struct ibv_qp *qp, const struct mc_wr *wr, struct ibv_sge *sges, int n);
int mc_post_recv(struct ibv_qp *qp, uint64_t id, struct ibv_sge *sges, int n);
// mc_get_async_event takes and acknowledges one event, or returns EAGAIN.
int mc_get_async_event(struct ibv_context *ctx, struct mc_event *out);
// mc_nonblock makes a file descriptor not block.
int mc_nonblock(int fd);

#endif
