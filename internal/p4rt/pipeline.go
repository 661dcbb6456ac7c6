package p4rt

import (
	"bytes"
	"context"
	"fmt"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/bmv2"
)

// HasPipeline says whether the switch runs this program. It is known by its cookie,
// or if the switch does not keep cookies, by itself.
func (s *Session) HasPipeline(ctx context.Context) (bool, error) {
	ctx, cancel := s.during(ctx)
	defer cancel()
	ctx, late := context.WithTimeoutCause(ctx, allTime, ErrSilent)
	defer late()
	get := func(what p4.GetForwardingPipelineConfigRequest_ResponseType) (*p4.ForwardingPipelineConfig, error) {
		r, err := s.c.rpc.GetForwardingPipelineConfig(ctx, &p4.GetForwardingPipelineConfigRequest{DeviceId: s.c.cfg.DeviceID, ResponseType: what})
		if c := status.Code(err); c == codes.FailedPrecondition || c == codes.NotFound {
			return nil, nil // none is set
		}
		return r.GetConfig(), silence(ctx, err)
	}
	c, err := get(p4.GetForwardingPipelineConfigRequest_COOKIE_ONLY)
	if err == nil && c != nil && c.GetCookie() == nil {
		c, err = get(p4.GetForwardingPipelineConfigRequest_ALL)
		if err == nil && c.GetCookie() == nil {
			return bytes.Equal(c.GetP4DeviceConfig(), bmv2.JSON), nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("p4rt: asking for the pipeline: %w", err)
	}
	return c.GetCookie().GetCookie() == s.c.schema.cookie && c != nil, nil
}

// PushPipeline gives the switch the program even if it has it. All its state is
// lost: entries, multicast groups, counters, registers, and what it knew of
// digests. Only the primary can.
func (s *Session) PushPipeline(ctx context.Context) error {
	ctx, cancel := s.during(ctx)
	defer cancel()
	id, err := s.primary()
	if err == nil {
		err = s.deleteGroups(ctx)
	}
	ctx, late := context.WithTimeoutCause(ctx, allTime, ErrSilent)
	defer late()
	if err == nil {
		_, err = s.c.rpc.SetForwardingPipelineConfig(ctx, &p4.SetForwardingPipelineConfigRequest{
			DeviceId: s.c.cfg.DeviceID, ElectionId: id.wire(), Action: p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
			Config: &p4.ForwardingPipelineConfig{P4Info: s.c.schema.info, P4DeviceConfig: bmv2.JSON,
				Cookie: &p4.ForwardingPipelineConfig_Cookie{Cookie: s.c.schema.cookie}}})
		err = silence(ctx, err)
	}
	switch {
	case status.Code(err) == codes.PermissionDenied:
		return fmt.Errorf("p4rt: setting the pipeline: %w: %w", ErrNotPrimary, err)
	case err != nil:
		return fmt.Errorf("p4rt: setting the pipeline: %w", err)
	}
	return nil
}

// deleteGroups deletes all multicast groups. bmv2 forgets them with the pipeline,
// but still has them: one that is inserted again then has each replica twice.
func (s *Session) deleteGroups(ctx context.Context) error {
	var groups []*p4.Update
	err := s.read(ctx, []*p4.Entity{multicastGroups()}, func(e *p4.Entity) error {
		groups = append(groups, &p4.Update{Type: p4.Update_DELETE, Entity: e})
		return nil
	})
	if status.Code(err) == codes.FailedPrecondition {
		return nil // there is no pipeline yet
	}
	for err == nil && len(groups) > 0 {
		n := min(len(groups), s.c.batch)
		err = s.call(ctx, groups[:n])
		groups = groups[n:]
	}
	return err
}
