package lab

import "context"

func (l *Lab) startDaemon(ctx context.Context, h *host) error { return nil }
