package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

type nowKey struct{}

// At returns a context whose Now is a given time.
func At(ctx context.Context, now time.Time) context.Context {
	return context.WithValue(ctx, nowKey{}, now)
}

// Now returns the time to which a command relates the times that it shows.
func Now(ctx context.Context) time.Time {
	if now, ok := ctx.Value(nowKey{}).(time.Time); ok {
		return now
	}
	return time.Now()
}

// Since returns how long ago something was.
func Since(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil {
		return ""
	}
	return Age(now.Sub(t.AsTime()))
}

// Age returns a time span with limited precision: 12s, 5m12s, 7h30m, 12d7h.
func Age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return max(d, 0).Truncate(time.Second).String()
}

// Either returns one of two words.
func Either(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// Plural returns a count with its noun.
func Plural[N int | uint64](n N, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "ch"):
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// QPN returns a QPN, or an MC_ID, as drivers and tools print it; "": there is none.
func QPN(n uint32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("0x%06x", n)
}
