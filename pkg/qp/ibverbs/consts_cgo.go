//go:build ibverbs && cgo && linux

package ibverbs

// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// The lines below compile only if each constant of convert.go equals the C
// header's: the index, their difference, must be a constant that is in range,
// and 0 is the only one.
var zero [1]struct{}

var (
	_ = zero[vState-C.IBV_QP_STATE]
	_ = zero[vAccess-C.IBV_QP_ACCESS_FLAGS]
	_ = zero[vPkeyIndex-C.IBV_QP_PKEY_INDEX]
	_ = zero[vPort-C.IBV_QP_PORT]
	_ = zero[vAV-C.IBV_QP_AV]
	_ = zero[vPathMTU-C.IBV_QP_PATH_MTU]
	_ = zero[vTimeout-C.IBV_QP_TIMEOUT]
	_ = zero[vRetryCnt-C.IBV_QP_RETRY_CNT]
	_ = zero[vRNRRetry-C.IBV_QP_RNR_RETRY]
	_ = zero[vRQPSN-C.IBV_QP_RQ_PSN]
	_ = zero[vMaxRdAtomic-C.IBV_QP_MAX_QP_RD_ATOMIC]
	_ = zero[vMinRNRTimer-C.IBV_QP_MIN_RNR_TIMER]
	_ = zero[vSQPSN-C.IBV_QP_SQ_PSN]
	_ = zero[vMaxDestRd-C.IBV_QP_MAX_DEST_RD_ATOMIC]
	_ = zero[vDestQPN-C.IBV_QP_DEST_QPN]

	_ = zero[vMTU256-C.IBV_MTU_256]
	_ = zero[vMTU256+4-C.IBV_MTU_4096]

	_ = zero[vSendFence-C.IBV_SEND_FENCE]
	_ = zero[vSendSignaled-C.IBV_SEND_SIGNALED]
	_ = zero[vSendSolicited-C.IBV_SEND_SOLICITED]

	_ = zero[vWCSend-C.IBV_WC_SEND]
	_ = zero[vWCWrite-C.IBV_WC_RDMA_WRITE]
	_ = zero[vWCRead-C.IBV_WC_RDMA_READ]
	_ = zero[vWCRecv-C.IBV_WC_RECV]
	_ = zero[vWCRecvWriteImm-C.IBV_WC_RECV_RDMA_WITH_IMM]
	_ = zero[vWCWithImm-C.IBV_WC_WITH_IMM]

	_ = zero[vEventCQErr-C.IBV_EVENT_CQ_ERR]
	_ = zero[vEventQPFatal-C.IBV_EVENT_QP_FATAL]
	_ = zero[vEventQPReqErr-C.IBV_EVENT_QP_REQ_ERR]
	_ = zero[vEventQPAccessErr-C.IBV_EVENT_QP_ACCESS_ERR]
	_ = zero[vEventCommEst-C.IBV_EVENT_COMM_EST]
	_ = zero[vEventDevFatal-C.IBV_EVENT_DEVICE_FATAL]
	_ = zero[vMaxStatus-C.IBV_WC_GENERAL_ERR]
	_ = zero[vGIDRoCEv2-C.IBV_GID_TYPE_ROCE_V2]
)

// The numbers of package qp that are passed through unchanged.
var (
	_ = zero[qp.StateReset-C.IBV_QPS_RESET]
	_ = zero[qp.StateInit-C.IBV_QPS_INIT]
	_ = zero[qp.StateRTR-C.IBV_QPS_RTR]
	_ = zero[qp.StateRTS-C.IBV_QPS_RTS]
	_ = zero[qp.StateSQD-C.IBV_QPS_SQD]
	_ = zero[qp.StateSQE-C.IBV_QPS_SQE]
	_ = zero[qp.StateError-C.IBV_QPS_ERR]

	_ = zero[qp.AccessLocalWrite-C.IBV_ACCESS_LOCAL_WRITE]
	_ = zero[qp.AccessRemoteWrite-C.IBV_ACCESS_REMOTE_WRITE]
	_ = zero[qp.AccessRemoteRead-C.IBV_ACCESS_REMOTE_READ]
	_ = zero[qp.AccessRemoteAtomic-C.IBV_ACCESS_REMOTE_ATOMIC]

	_ = zero[qp.OpWrite-C.IBV_WR_RDMA_WRITE]
	_ = zero[qp.OpWriteImm-C.IBV_WR_RDMA_WRITE_WITH_IMM]
	_ = zero[qp.OpSend-C.IBV_WR_SEND]
	_ = zero[qp.OpSendImm-C.IBV_WR_SEND_WITH_IMM]
	_ = zero[qp.OpRead-C.IBV_WR_RDMA_READ]

	_ = zero[qp.StatusSuccess-C.IBV_WC_SUCCESS]
	_ = zero[qp.StatusLocLenErr-C.IBV_WC_LOC_LEN_ERR]
	_ = zero[qp.StatusLocProtErr-C.IBV_WC_LOC_PROT_ERR]
	_ = zero[qp.StatusWRFlushErr-C.IBV_WC_WR_FLUSH_ERR]
	_ = zero[qp.StatusRemInvReqErr-C.IBV_WC_REM_INV_REQ_ERR]
	_ = zero[qp.StatusRemAccessErr-C.IBV_WC_REM_ACCESS_ERR]
	_ = zero[qp.StatusRemOpErr-C.IBV_WC_REM_OP_ERR]
	_ = zero[qp.StatusRetryExcErr-C.IBV_WC_RETRY_EXC_ERR]
	_ = zero[qp.StatusRNRRetryExcErr-C.IBV_WC_RNR_RETRY_EXC_ERR]
	_ = zero[qp.StatusFatalErr-C.IBV_WC_FATAL_ERR]
	_ = zero[qp.StatusRespTimeoutErr-C.IBV_WC_RESP_TIMEOUT_ERR]
	_ = zero[qp.StatusGeneralErr-C.IBV_WC_GENERAL_ERR]
)

// A qp.SGE is handed to C as the struct ibv_sge that it has the layout of.
var (
	_ = zero[unsafe.Sizeof(qp.SGE{})-C.sizeof_struct_ibv_sge]
	_ = zero[unsafe.Offsetof(qp.SGE{}.Addr)-unsafe.Offsetof(C.struct_ibv_sge{}.addr)]
	_ = zero[unsafe.Offsetof(qp.SGE{}.Length)-unsafe.Offsetof(C.struct_ibv_sge{}.length)]
	_ = zero[unsafe.Offsetof(qp.SGE{}.LKey)-unsafe.Offsetof(C.struct_ibv_sge{}.lkey)]
)
